"""Networks: their architectures, the public weights they build on, and ensembles of them."""
