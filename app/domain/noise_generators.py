"""The Gaussian noise generators that a certificate may name.

Workers implement them; a verifier knows them by name only.
"""

from typing import Final

SECURE: Final = "aes-256-ctr, box-muller float64, 74-bit radius, sum of 2"
ON_DEVICE: Final = "chacha20, box-muller float64, 74-bit radius, sum of 2"
"""Where a CUDA device computes its own key stream."""
KNOWN: Final = frozenset({SECURE, ON_DEVICE})
