"""Processes: starting, supervising, stopping and isolating them."""
