"""The features that a head sees of a frozen backbone: float16, as they are stored.

Training, evaluation and a published model round alike, so that all of them see the same numbers.
"""

from typing import Final

import torch

_LARGEST: Final = 65504.0


def half(features: torch.Tensor) -> torch.Tensor:
    """Return features as float16; what it cannot reach becomes its largest number."""
    return features.to(torch.float32).clamp(-_LARGEST, _LARGEST).half()
