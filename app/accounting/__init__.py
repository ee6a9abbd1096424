"""Numbers in, guarantee out: one mechanism a file, pure functions, float64, rounded outward."""
