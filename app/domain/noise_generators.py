"""The generators of Gaussian noise that a certificate may name.

Workers implement them; a verifier, which never loads a worker, knows them by name.
"""

from typing import Final

SECURE: Final = "aes-256-ctr, box-muller float64, 74-bit radius, sum of 2"
KNOWN: Final = frozenset({SECURE})
