"""Runs of ensembles: which members they train, and which worker trains which."""
