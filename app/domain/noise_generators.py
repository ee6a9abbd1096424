"""The Gaussian noise generators that a certificate may name.

Workers implement them; a verifier knows them by name only.
"""

from typing import Final

SECURE: Final = "aes-256-ctr, box-muller float64, 74-bit radius, sum of 2"
KNOWN: Final = frozenset({SECURE})
