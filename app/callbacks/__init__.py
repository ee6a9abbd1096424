"""Telling callers what happens to their requests: events are signed, posted and retried."""
