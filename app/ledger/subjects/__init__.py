"""Data subject requests: one person, all datasets that know them, one status (OpenDSR 2.0)."""
