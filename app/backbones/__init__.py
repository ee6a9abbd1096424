"""Public backbones: what is stored of them, and the checks on their use."""
