"""Statements, their signatures, and offline verification."""
