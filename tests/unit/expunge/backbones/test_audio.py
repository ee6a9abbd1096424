"""The speaker encoder, against what its package's own code computes."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from app.domain.errors import InvalidInputError
from expunge import backbones

# Of `voice` below: VoiceEncoder.embed_utterance(normalize_volume(wav, -30, increase_only=True)) of
# resemblyzer 0.1.4 with librosa 0.11.0, its first features.
REFERENCE = {
    16000: [
        0.114524,
        0.030121,
        0.0,
        0.0,
        0.0,
        0.0,
        0.022507,
        0.049774,
        0.001411,
        0.219882,
        0.066215,
        0.0,
    ],
    57777: [
        0.0,
        0.044686,
        0.0,
        0.0,
        0.026446,
        0.03023,
        0.014351,
        0.043303,
        0.048379,
        0.18879,
        0.055373,
        0.039142,
    ],
}


def voice(samples, pitch=150):
    time = np.arange(samples) / 16_000
    noise = np.random.default_rng(0).standard_normal(samples)
    wave = np.sin(2 * np.pi * (pitch + 40 * np.sin(3 * time)) * time) * (1 + np.sin(7 * time))
    return torch.from_numpy((0.02 * wave + 0.003 * noise).astype(np.float32))


def encoder(samples):
    if find_spec("resemblyzer") is None:  # importing it needs libraries that nothing here uses
        pytest.skip("resemblyzer is not installed")
    network = backbones.resemblyzer(input_shape=(samples,), classes=2).eval()
    weights = backbones.INSTALLED["expunge.backbones:resemblyzer"].read()
    network.load_state_dict({name: weights[name] for name in network.state_dict()})
    return network


@pytest.mark.parametrize("samples", sorted(REFERENCE))
def test_a_recording_has_the_features_of_the_package(samples):
    with torch.no_grad():
        found = encoder(samples)(voice(samples).unsqueeze(0))
    assert found.shape == (1, 256)
    np.testing.assert_allclose(found[0, : len(REFERENCE[samples])], REFERENCE[samples], atol=1e-5)
    assert float(found.norm()) == pytest.approx(1)


def test_zeros_that_fill_up_a_recording_do_not_count():
    recording = voice(25_600)
    filled = torch.cat([recording, torch.zeros(80_000)])
    with torch.no_grad():
        short = encoder(25_600)(recording.unsqueeze(0))[0]
        long = encoder(105_600)(torch.stack([filled, torch.zeros(105_600)]))
    torch.testing.assert_close(long[0], short, atol=1e-5, rtol=0)
    assert torch.isfinite(long).all()


def test_a_quiet_recording_is_amplified_and_a_loud_one_is_not():
    network, loud = encoder(25_600), voice(25_600) * 5
    with torch.no_grad():
        usual, quiet = network(torch.stack([voice(25_600), voice(25_600) / 9]))
    torch.testing.assert_close(quiet, usual, atol=1e-4, rtol=0)
    assert torch.isfinite(network(loud.unsqueeze(0))).all()


@pytest.mark.parametrize(
    ("shape", "options"),
    [((2, 16_000), {}), ((16_000,), {"parts_per_second": 0.5}), ((9,), {"parts_per_second": "x"})],
)
def test_other_records_and_options_are_refused(shape, options):
    with pytest.raises(InvalidInputError):
        backbones.resemblyzer(input_shape=shape, classes=2, **options)
