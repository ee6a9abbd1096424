"""Columns of image files, as bytes of one size."""

import io
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.domain.columns import ImageColumn
from app.domain.extras import IMAGES, loaded

_FORMATS: Final = ("JPEG", "PNG")
_MOST_PIXELS: Final = 100_000_000


def pixels_of(
    column: pa.Array, rule: ImageColumn
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return images without nulls, uint8 [n, rule.width], and which of them are none.

    Each is decoded by itself and scaled by bilinear interpolation; nothing of it is written to a
    file. What is not an image, or has more than 100 million pixels, stays 0.
    """
    image: Any = loaded("PIL.Image", extra=IMAGES)
    found = np.zeros((len(column), rule.width), dtype=np.uint8)
    faulty = np.zeros(len(column), dtype=np.bool_)
    for row, content in enumerate(column):
        try:
            found[row] = _decoded(image, content.as_buffer(), rule)
        except (OSError, ValueError, SyntaxError, OverflowError, image.DecompressionBombError):
            faulty[row] = True
    return found, faulty


def _decoded(image: Any, content: pa.Buffer, rule: ImageColumn) -> npt.NDArray[np.uint8]:  # noqa: ANN401
    channels, height, width = rule.shape
    with image.open(io.BytesIO(content), formats=_FORMATS) as opened:
        if opened.width * opened.height > _MOST_PIXELS:
            raise ValueError("too large")
        opened.draft("RGB" if channels == 3 else "L", (width, height))
        converted = opened.convert("RGB" if channels == 3 else "L")
    scaled = converted.resize((width, height), image.Resampling.BILINEAR)
    numbers = np.asarray(scaled, dtype=np.uint8).reshape(height, width, channels)
    return np.moveaxis(numbers, 2, 0).reshape(-1)
