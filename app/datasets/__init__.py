"""Datasets, their records and shards, and erasure."""
