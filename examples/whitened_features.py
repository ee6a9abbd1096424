"""Whiten a backbone's features by public data: ``python examples/whitened_features.py A B C``.

A are the weights of examples/backbone.json, B is an .npz with ``features`` of public digits. The
file C has one linear layer more: of features x it makes s (x - m) U diag(l + 0.001 l0)^-0.35, with
the mean m and the covariance U diag(l) U' of the features of B, and l0 the mean of l; s gives them
a mean variance of 1. C fits examples/whitened_backbone.json. For a network of your own, let its
factory end in such a layer.
"""

import sys

import numpy as np
from safetensors.numpy import load_file, save_file

base = load_file(sys.argv[1])
pictures = np.load(sys.argv[2])["features"].reshape(-1, 64) * 0.0625  # as the dataset scales them
features = np.maximum(pictures @ base["1.weight"].T + base["1.bias"], 0)
mean = features.mean(axis=0)
values, vectors = np.linalg.eigh(np.cov(features.T, bias=True))
values = np.maximum(values, 0)
transform = vectors * (values + 0.001 * values.mean()) ** -0.35
transform /= np.sqrt(((features - mean) @ transform).var(axis=0).mean())
save_file(
    {
        "1.weight": base["1.weight"],
        "1.bias": base["1.bias"],
        "3.weight": np.ascontiguousarray(transform.T, np.float32),
        "3.bias": (-mean @ transform).astype(np.float32),
        "5.weight": np.zeros((10, len(mean)), np.float32),  # no model uses it
        "5.bias": np.zeros(10, np.float32),
    },
    sys.argv[3],
)
