"""Who calls: keys and tokens, and how often somebody may call or fail."""
