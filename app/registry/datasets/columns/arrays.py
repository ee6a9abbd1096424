"""Columns of lists, tensors, texts and images, as arrays."""

import io
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from app.domain.columns import ImageColumn, TextColumn
from app.domain.extras import IMAGES, loaded
from app.registry.datasets.columns.problems import Problems

_FORMATS: Final = ("JPEG", "PNG")
_MOST_PIXELS: Final = 100_000_000
_NUMBERS: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def is_array(kind: pa.DataType) -> bool:
    """Return whether a column holds lists or tensors."""
    return isinstance(kind, pa.FixedShapeTensorType) or hasattr(kind, "value_field")


def array_fault(kind: pa.DataType) -> str | None:
    """Return why a column's type cannot be read; None if it can."""
    if isinstance(kind, pa.FixedShapeTensorType):
        if kind.permutation not in (None, list(range(len(kind.shape)))):
            return "must be a tensor in C order, without permutation"
        kind = kind.storage_type
    value = kind.value_type if hasattr(kind, "value_field") else pa.null()
    if not any(fits(value) for fits in _NUMBERS):
        return "must be a list or tensor of numbers"
    return None


def array_values(
    column: pa.Array,
    *,
    name: str,
    size: int,
    dtype: str,
    vocabulary: int | None,
    problems: Problems,
) -> npt.NDArray[Any] | None:
    """Return the values of shape (n, size), or None where a whole row is wrong.

    The column is of a type without ``array_fault``. Faults go to ``problems``, and faulty values
    become arbitrary ones.
    """
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    lengths = as_array(pc.fill_null(pc.list_value_length(storage), -1))
    if isinstance(storage.type, pa.FixedSizeListType):
        lengths = np.where(as_array(storage.is_null()), -1, lengths)
    wrong = lengths != size
    if wrong.any():
        problems.add_where(wrong, name, f"must have {size} elements")
        return None
    flat = pc.list_flatten(storage)
    if flat.null_count:
        null = np.any(as_array(flat.is_null()).reshape(-1, size), axis=1)
        problems.add_where(null, name, "contains null")
        return None
    most = 255 if dtype == "uint8" else None if vocabulary is None else vocabulary - 1
    if pa.types.is_decimal(flat.type):
        flat = flat.cast(pa.float64())
    raw = as_array(flat).reshape(-1, size)
    if most is None:
        return _finite(raw, name, dtype, problems)
    fits = (raw >= 0) & (raw <= most) & (raw == np.floor(raw))
    reason = f"must hold whole numbers from 0 to {most}"
    problems.add_where(~fits.all(axis=1), name, reason)
    return np.where(fits, raw, 0).astype(dtype)


def as_array(column: pa.Array) -> npt.NDArray[Any]:
    """Return a column of numbers, or of true and false, without nulls."""
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def tokens_of(column: pa.Array, rule: TextColumn) -> npt.NDArray[np.int32]:
    """Return the tokens of texts without nulls, int32 [n, rule.length]."""
    texts = column.cast(pa.large_binary())
    ends = np.frombuffer(texts.buffers()[1], dtype=np.int64)[texts.offset :][: len(texts) + 1]
    content = texts.buffers()[2]
    read = np.frombuffer(b"" if content is None else content, dtype=np.uint8)
    starts = ends[:-1]
    lengths = np.minimum(np.diff(ends), rule.length)
    places = np.arange(rule.length)
    within = places < lengths[:, None]
    found = np.full((len(texts), rule.length), rule.padding, dtype=np.int32)
    found[within] = read[(starts[:, None] + places)[within]].astype(np.int32) + 1
    return found


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


def _finite(raw: npt.NDArray[Any], name: str, dtype: str, problems: Problems) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        converted = raw.astype(dtype, copy=False)
    infinite = ~np.isfinite(converted).all(axis=1)
    problems.add_where(infinite, name, f"must hold finite {dtype} numbers")
    return converted
