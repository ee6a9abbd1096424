"""Everything that processes weights and records: the only package that uses torch."""
