"""What touches weights and records: the only place with torch."""
