"""Blobs: every large object, stored once and shredded for good."""
