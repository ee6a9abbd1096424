"""Charts, the numbers in them, and the page of all figures."""
