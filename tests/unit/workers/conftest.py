"""Real data for the worker tests: scikit-learn's handwritten digits."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from workers.training.examples import classified


def digits_of(index, shape=(64,)):
    data = load_digits()
    features = data.data[index].astype(np.float32).reshape(-1, *shape)
    return classified(features, data.target[index], offset=8.0, scale=1 / 8)


@pytest.fixture(scope="session")
def digits():
    """The first 1000 digits, to train on."""
    return digits_of(slice(0, 1000))


@pytest.fixture(scope="session")
def held_out():
    """The other 797 digits."""
    return digits_of(slice(1000, None))


@pytest.fixture(scope="session")
def digit_images():
    """256 digits as images of one channel."""
    return digits_of(slice(0, 256), shape=(1, 8, 8))
