"""Weights that cannot be saved until they are certified, in a process without file access."""
