"""Imports: reading files by reference into datasets, batch by batch."""
