"""Blobs: large objects, stored encrypted and shredded by destroying their key."""
