"""Heads on features, which forget exactly or have their steps counted."""
