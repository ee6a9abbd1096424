"""The concepts of Expunge as plain values. Standard library only."""
