"""What models learn, as data: which columns are read, which is the target, which loss."""
