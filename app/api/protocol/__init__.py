"""HTTP mechanics shared by all resources."""
