"""Published models as modules of PyTorch, loaded from their files."""
