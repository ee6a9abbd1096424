"""Who calls: keys and tokens, and how often a caller may call or fail."""
