"""Columns of lists or tensors of numbers, as arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from app.tables.problems import Problems


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
    if not (pa.types.is_integer(value) or pa.types.is_floating(value)):
        return "must be a list or tensor of numbers"
    return None


def array_values(
    column: pa.Array,
    *,
    name: str,
    size: int,
    dtype: str,
    vocabulary: int | None,
    first: int,
    problems: Problems,
) -> npt.NDArray[Any] | None:
    """Return the values of shape (n, size), or None where a whole row is wrong.

    Args:
        column: of a type without ``array_fault``.
        name: the column's, for errors.
        size: how many elements each row must have.
        dtype: what all values must fit into.
        vocabulary: all values must be whole numbers below it, if it is given.
        first: the row number of the first row.
        problems: receives the faults; faulty values become arbitrary ones.
    """
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    lengths = numbers(pc.fill_null(pc.list_value_length(storage), -1))
    if isinstance(storage.type, pa.FixedSizeListType):
        lengths = np.where(marks(storage.is_null()), -1, lengths)
    wrong = lengths != size
    if wrong.any():
        problems.add_where(wrong, first, name, f"must have {size} elements")
        return None
    flat = pc.list_flatten(storage)
    if flat.null_count:
        null = np.any(marks(flat.is_null()).reshape(-1, size), axis=1)
        problems.add_where(null, first, name, "contains null")
        return None
    most = 255 if dtype == "uint8" else None if vocabulary is None else vocabulary - 1
    raw = numbers(flat).reshape(-1, size)
    if most is None:
        return _finite(raw, name, dtype, first, problems)
    fits = (raw >= 0) & (raw <= most) & (raw == np.floor(raw))
    reason = f"must hold whole numbers from 0 to {most}"
    problems.add_where(~fits.all(axis=1), first, name, reason)
    return np.where(fits, raw, 0).astype(dtype)


def marks(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a column of true and false, without nulls, as an array."""
    found: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return found


def numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return a column of numbers, without nulls, as an array."""
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def _finite(
    raw: npt.NDArray[Any], name: str, dtype: str, first: int, problems: Problems
) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        converted = raw.astype(dtype)
    infinite = ~np.isfinite(converted).all(axis=1)
    problems.add_where(infinite, first, name, f"must hold finite {dtype} numbers")
    return converted
