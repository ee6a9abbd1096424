"""Training without noise, what feeds it, and evaluation."""
