"""Heads that are functions of the retained records alone (docs/guarantees.md, section 13)."""
