"""Forget requests, obligations, runs, outbox and log."""
