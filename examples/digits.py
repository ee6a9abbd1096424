"""Write scikit-learn's handwritten digits as a record file: ``python examples/digits.py FILE``."""

import sys

import numpy as np
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
numbers = range(len(labels))
np.savez_compressed(
    sys.argv[1],
    record_id=[f"record-{number}" for number in numbers],
    subject_id=[f"person-{number // 10}" for number in numbers],
    label=labels,
    features=images.reshape(-1, 8, 8).astype(np.uint8),
)
