"""Small weight files, as a worker would have published them."""

import numpy as np
import safetensors.numpy

from app.domain.architectures import ArchitectureSpec
from app.registry.backbones import BackboneDefinition

# What ``workers.training.networks.architectures`` builds for two features and two classes.
NETWORK = {"1.bias": (2,), "1.weight": (2, 2)}
NETWORK_DIMENSION = 6
HEAD = {"weight": (1, 3)}
HEAD_DIMENSION = 3


def network_weights(*, padding: int = 0, value: float = 0.5) -> bytes:
    """Return the weights of a logistic regression, with a buffer of random bytes beside them."""
    tensors = {name: np.full(shape, value, np.float32) for name, shape in NETWORK.items()}
    if padding:
        tensors["buffer"] = np.random.default_rng().integers(0, 256, padding, np.uint8)
    return safetensors.numpy.save(tensors)


def head_weights(*, value: float = 1.0) -> bytes:
    """Return the weights of a linear head of two classes; whole numbers lie on every grid."""
    return safetensors.numpy.save(
        {name: np.full(shape, value, np.float64) for name, shape in HEAD.items()}
    )


def weights_of_version(number: int, *, head: bool = False) -> bytes:
    """Return what a version of tests holds unless it is told otherwise."""
    return head_weights(value=number) if head else network_weights(value=1 / number)


WEIGHTS = weights_of_version(1)


def public_backbone(name: str) -> BackboneDefinition:
    """Return the definition of a backbone of two features and two classes."""
    return BackboneDefinition(
        name=name,
        architecture=ArchitectureSpec("logistic"),
        input_shape=(2,),
        classes=2,
        source="a test",
    )
