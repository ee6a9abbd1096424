"""Architectures, data loading, training, fine-tuning and evaluation."""
