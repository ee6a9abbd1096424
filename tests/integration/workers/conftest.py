"""Real data for the worker tests."""

from tests.unit.workers.conftest import digit_images, digits, held_out

__all__ = ["digit_images", "digits", "held_out"]
