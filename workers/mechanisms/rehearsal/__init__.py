"""What a network is tried on before any record is read."""
