"""Write a public backbone for the digits: ``python examples/random_features.py FILE``.

A hidden layer of random weights under a fixed seed depends on nobody's data, and a linear head on
256 such features reads digits well. A network pretrained on public images takes the same place.
"""

import sys

import numpy as np
from safetensors.numpy import save_file

generator = np.random.default_rng(2025)


def layer(inputs: int, outputs: int) -> np.ndarray:
    """Return weights [outputs, inputs] of the size that keeps a signal's strength."""
    return (generator.standard_normal((outputs, inputs)) * (2 / inputs) ** 0.5).astype(np.float32)


save_file(
    {
        "1.weight": layer(64, 256),
        "1.bias": np.zeros(256, np.float32),
        "3.weight": layer(256, 10),
        "3.bias": np.zeros(10, np.float32),
    },
    sys.argv[1],
)
