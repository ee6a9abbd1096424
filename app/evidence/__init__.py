"""What proves what was done: certificates and the transparency log."""
