"""The mechanisms, one a file; ``mechanism.Mechanism`` is what all of them have in common."""
