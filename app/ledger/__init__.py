"""Forget requests, obligations, runs, the outbox and publication."""
