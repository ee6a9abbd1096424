"""Public backbones: their stored weights, and the checks on their use."""
