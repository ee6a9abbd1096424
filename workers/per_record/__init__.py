"""Gradients of single records, clipped and summed without holding one for each record."""
