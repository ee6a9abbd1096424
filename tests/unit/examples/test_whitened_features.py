"""The example that whitens a backbone's features by public data."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.datasets import load_digits

from app.domain.architectures import ArchitectureSpec, FeatureLayer
from workers.training.networks.architectures import build_features

EXAMPLES = Path(__file__).parents[3] / "examples"


def features_of(definition: str, weights: Path, pictures: np.ndarray) -> np.ndarray:
    """Return what a frozen backbone makes of pictures, in float64."""
    document = json.loads((EXAMPLES / definition).read_text())
    whole, features = build_features(
        ArchitectureSpec.from_json(document["architecture"]),
        input_shape=tuple(document["input"]["shape"]),
        classes=document["classes"],
        allowed_factories=[],
        layers=FeatureLayer.all_from_json(document.get("layers", [])),
    )
    whole.load_state_dict(safetensors.torch.load_file(weights))
    with torch.no_grad():
        found = features.eval()(torch.from_numpy((pictures * 0.0625).astype(np.float32)))
    return found.numpy().astype(np.float64)


def test_the_features_are_those_of_the_formula(tmp_path: Path) -> None:
    images = load_digits().images
    public, private = images[::2], images[1::2]
    base, white = tmp_path / "base.safetensors", tmp_path / "white.safetensors"
    np.savez(tmp_path / "open.npz", features=public.astype(np.uint8))
    for script, *files in (
        ("random_features.py", base),
        ("whitened_features.py", base, tmp_path / "open.npz", white),
    ):
        subprocess.run([sys.executable, EXAMPLES / script, *files], check=True)

    known = features_of("backbone.json", base, public)
    values, vectors = np.linalg.eigh(np.cov(known.T, bias=True))
    values = values.clip(0)
    transform = vectors * (values + 1e-3 * values.mean()) ** -0.35
    transform /= np.sqrt((known @ transform).var(axis=0).mean())
    expected = (features_of("backbone.json", base, private) - known.mean(axis=0)) @ transform
    found = features_of("whitened_backbone.json", white, private)

    assert found.shape == (len(private), 256)
    # The signs of eigenvectors are free.
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, rtol=1e-3, atol=0.05)
    of_public = features_of("whitened_backbone.json", white, public)
    assert of_public.var(axis=0).mean() == pytest.approx(1, rel=1e-3)
    assert np.abs(of_public.mean(axis=0)).max() < 1e-3
