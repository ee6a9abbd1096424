"""Requests and runs as callers see them: in one statement, found by what callers know."""
