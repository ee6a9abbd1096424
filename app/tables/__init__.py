"""Plain tables: read from any file, and turned into records by a rule; needs no service."""
