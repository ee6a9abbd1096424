"""Numbers in, guarantee out: one mechanism a file, pure functions, float64, rounded outward.

Everything raises ``ParameterError`` for a number out of the range in which its theorem holds, which
includes noise too small for float64 to add, and ``CalibrationError`` where a search does not
converge or cannot succeed. Docstrings say so only where it needs a word of its own.
"""
