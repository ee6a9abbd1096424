"""Imports: records that a worker reads from where they are, in the background."""
