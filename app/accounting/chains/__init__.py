"""Noisy chains of steps: how far apart two worlds drift, and how well noise hides it."""
