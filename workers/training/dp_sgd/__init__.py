"""DP-SGD: Poisson samples, and gradients of single records, clipped and summed."""
