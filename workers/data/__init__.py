"""What a run reads: records, features and the weights that it starts from."""
