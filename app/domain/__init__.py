"""The words of Expunge as plain values. Standard library only."""
