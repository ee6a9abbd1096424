"""Telling callers of what becomes of their requests: events, signed, posted, tried again."""
