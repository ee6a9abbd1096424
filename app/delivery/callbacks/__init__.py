"""Callbacks about the state of requests: events are signed, posted and retried."""
