import pytest

from app.accounting.search import smallest_noise
from app.domain.errors import CalibrationError


def test_ends_just_above_the_threshold():
    for threshold in (1e-6, 0.3, 7.0, 1e5):
        found = smallest_noise(lambda noise, at=threshold: noise >= at, scale=1.0)
        assert threshold <= found <= threshold * (1 + 1e-9)


def test_gives_up_where_nothing_or_everything_passes():
    with pytest.raises(CalibrationError):
        smallest_noise(lambda _: False, scale=1.0)
    with pytest.raises(CalibrationError):
        smallest_noise(lambda _: True, scale=1.0)
