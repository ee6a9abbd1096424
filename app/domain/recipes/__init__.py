"""How a model is trained, as its definition says."""
