"""A model's definition, its policy, and which version of it may be served."""
