"""Operators' tools to check, search and reconcile stored data."""
