"""What a model learns: the loss of a record, predictions, and metrics."""
