"""Ranges of parameters in a certificate. Counts are bounded, which bounds a verifier's work."""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from app.domain.schedules import MAX_SCHEDULE_STEPS

MAX_BATCHES: Final = 1_000_000

Positive = Annotated[float, Field(gt=0)]
Steps = Annotated[int, Field(ge=1, le=10_000_000)]
Whole = Annotated[int, Field(ge=1, le=2**53)]
Dimension = Annotated[int, Field(ge=1, le=2**40)]
# Its square is a normal float64 (``app.domain.checks.require_noise``).
NoiseStd = Annotated[float, Field(ge=1e-140, le=1e140)]
NoNoise = Annotated[float, Field(ge=0, le=0)]

_LENGTHS: Final = Field(min_length=1, max_length=MAX_SCHEDULE_STEPS)
Numbers = float | Annotated[Sequence[float], _LENGTHS]
NoiseStds = NoiseStd | Annotated[Sequence[NoiseStd], _LENGTHS]
