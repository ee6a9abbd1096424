"""The speaker encoder of the package ``resemblyzer``.

The package's own code needs libraries that read and cut audio files. Records are samples already,
so only its weights are used, and its network is built here.
"""

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.nn.functional import normalize, pad

from app.domain.errors import ConfigurationError, InvalidInputError

SAMPLE_RATE: Final = 16_000
_WINDOW: Final = 400  # 25 ms
_STEP: Final = 160  # 10 ms
_BANDS: Final = 40
_FRAMES: Final = 160  # of a part of 1.6 s
_WIDTH: Final = 256
_LAYERS: Final = 3
_LEAST_COVERED: Final = 0.75
_QUIETEST: Final = 10 ** (-30 / 20)  # -30 dBFS, as a share of full scale


def resemblyzer(
    *,
    input_shape: tuple[int, ...],
    classes: int,  # noqa: ARG001 - the encoder has no classifier
    parts_per_second: float = 1.3,
) -> nn.Module:
    """Return the speaker encoder: float samples at 16 kHz, from -1 to 1, to 256 features.

    Args:
        input_shape: [samples]; shorter recordings end in zeros, which do not count.
        classes: any.
        parts_per_second: how many parts of 1.6 s begin in a second; their features are averaged.
    """
    if len(input_shape) != 1:
        raise InvalidInputError(
            f"records of shape {list(input_shape)} are no samples of one channel"
        )
    if not isinstance(parts_per_second, int | float) or not 0.625 <= parts_per_second <= 100:
        raise InvalidInputError("option parts_per_second must be a number from 0.625 to 100")
    return SpeakerEncoder(input_shape[0], float(parts_per_second))


def resemblyzer_weights() -> Mapping[str, torch.Tensor]:
    """Return the weights in the package ``resemblyzer``, which is not imported."""
    spec = importlib.util.find_spec("resemblyzer")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "resemblyzer is not installed: pip install --no-deps resemblyzer, since only the file "
            "with its weights is used"
        )
    path = Path(spec.origin).parent / "pretrained.pt"
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    weights: Mapping[str, torch.Tensor] = checkpoint["model_state"]
    return weights


class SpeakerEncoder(nn.Module):
    """Three recurrent layers over mel spectrograms of parts of a recording.

    Args:
        samples: of a record.
        parts_per_second: see ``resemblyzer``.
    """

    def __init__(self, samples: int, parts_per_second: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(_BANDS, _WIDTH, _LAYERS, batch_first=True)
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self._starts = _starts(samples, parts_per_second)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return features [n, 256] of samples [n, S]."""
        samples = _loud_enough(samples)
        end = (self._starts[-1] + _FRAMES) * _STEP
        samples = pad(samples, (0, max(0, end - samples.shape[1])))
        frames = _mel_spectrogram(samples)
        parts = torch.stack([frames[:, start : start + _FRAMES] for start in self._starts], dim=1)
        _, (hidden, _) = self.lstm(parts.flatten(0, 1))
        features = normalize(self.linear(hidden[-1]).relu(), dim=1).reshape(*parts.shape[:2], -1)
        heard = _heard(samples, self._starts).unsqueeze(2)
        return normalize((features * heard).sum(dim=1), dim=1)


def _heard(samples: torch.Tensor, starts: list[int]) -> torch.Tensor:
    """Return which parts count, bool [n, parts]: those that three quarters of a recording fill."""
    place = torch.arange(1, samples.shape[1] + 1, device=samples.device)
    ends = ((samples != 0) * place).amax(dim=1, keepdim=True)
    first = torch.tensor(starts, device=samples.device) * _STEP
    return (ends - first >= _LEAST_COVERED * _FRAMES * _STEP) | (first == 0)


def _starts(samples: int, parts_per_second: float) -> list[int]:
    """Return the first frame of each part, as the package chooses them."""
    step = round(SAMPLE_RATE / parts_per_second / _STEP)
    frames = math.ceil((samples + 1) / _STEP)
    starts = list(range(0, max(1, frames - _FRAMES + step + 1), step))
    covered = (samples - starts[-1] * _STEP) / (_FRAMES * _STEP)
    return starts[:-1] if covered < _LEAST_COVERED and len(starts) > 1 else starts


def _loud_enough(samples: torch.Tensor) -> torch.Tensor:
    """Amplify quiet recordings; zeros, which may only fill them up, do not count as quiet."""
    heard = (samples != 0).sum(dim=1, keepdim=True).clamp(min=1)
    level = (samples.square().sum(dim=1, keepdim=True) / heard).sqrt()
    factor = (_QUIETEST / level.clamp(min=1e-12)).clamp(min=1)
    return samples * torch.where(level > 0, factor, torch.ones_like(factor))


def _mel_spectrogram(samples: torch.Tensor) -> torch.Tensor:
    """Return the power in each band, [n, frames, 40]."""
    window = torch.hann_window(_WINDOW, device=samples.device)
    spectrum = torch.stft(
        samples,
        _WINDOW,
        hop_length=_STEP,
        window=window,
        center=True,
        pad_mode="constant",
        return_complex=True,
    )
    bands = _mel_bands().to(samples.device)
    return (bands @ spectrum.abs().square()).transpose(1, 2)


def _mel_bands() -> torch.Tensor:
    """Return triangular filters [40, 201] of equal area on Slaney's scale, as librosa's are."""
    top = _mel(SAMPLE_RATE / 2)
    edges = [_hertz(top * i / (_BANDS + 1)) for i in range(_BANDS + 2)]
    hertz = torch.linspace(0, SAMPLE_RATE / 2, _WINDOW // 2 + 1, dtype=torch.float64)
    rows = []
    for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
        rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
        rows.append(torch.minimum(rising, falling).clamp(min=0) * (2 / (high - low)))
    return torch.stack(rows).to(torch.float32)


# Slaney's scale: linear up to 1000 Hz, then 27 bands for each factor of 6.4.
_LINEAR: Final = 200 / 3
_CORNER: Final = 1000.0
_LOG_STEP: Final = math.log(6.4) / 27


def _mel(hertz: float) -> float:
    if hertz < _CORNER:
        return hertz / _LINEAR
    return _CORNER / _LINEAR + math.log(hertz / _CORNER) / _LOG_STEP


def _hertz(mel: float) -> float:
    corner = _CORNER / _LINEAR
    return mel * _LINEAR if mel < corner else _CORNER * math.exp((mel - corner) * _LOG_STEP)
