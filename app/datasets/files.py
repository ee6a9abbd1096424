"""Record files of the owner: Parquet, CSV and npz, converted to the upload format."""

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from app.domain.errors import InvalidInputError

MAX_UNPACKED_BYTES = 8 << 30
"""Limit on a local file's unpacked size; the service's limit per upload is far lower."""

# Ids are text, even if they look like numbers: 007 is not 7.
_CSV_CONVERSION = pyarrow.csv.ConvertOptions(
    column_types={"record_id": pa.string(), "subject_id": pa.string()},
    strings_can_be_null=True,
    null_values=[""],
)


@dataclass(frozen=True)
class RecordFile:
    """A file's records as Parquet, with the inferred part of their schema.

    Attributes:
        parquet: columns record_id, label, features, and subject_id if the file has it.
        shape: shape of one record's features.
        dtype: ``uint8``, ``float32`` or ``float64``.
        classes: the largest label plus one, at least 2.
    """

    parquet: bytes
    shape: tuple[int, ...]
    dtype: str
    classes: int


def read_record_file(path: Path) -> RecordFile:
    """Read a record file.

    Parquet: the columns of an upload. CSV: a header with ``record_id``, ``label`` and optionally
    ``subject_id``; every other column is one feature, in order. npz: arrays ``record_id``,
    ``label``, ``features`` (n, …) and optionally ``subject_id``.

    Raises:
        InvalidInputError: the file has another format, or a column is missing.
    """
    readers = {".parquet": pq.read_table, ".csv": _read_csv, ".npz": _read_npz}
    if path.suffix not in readers:
        raise InvalidInputError(f"{path.name}: expected a .parquet, .csv or .npz file")
    try:
        _refuse_bomb(path)
        table = readers[path.suffix](path)
    except InvalidInputError:
        raise
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        TypeError,
        MemoryError,
        zipfile.BadZipFile,
    ) as error:
        raise InvalidInputError(f"{path.name} cannot be read: {type(error).__name__}") from error
    for column in ("record_id", "label", "features"):
        if column not in table.column_names:
            raise InvalidInputError(f"{path.name} has no column {column!r}")
    shape, dtype = _feature_type(table)
    if not pa.types.is_integer(table["label"].type):
        raise InvalidInputError(f"{path.name}: column 'label' must hold whole numbers")
    labels = table["label"].drop_null().to_numpy()
    return RecordFile(
        parquet=to_parquet(table),
        shape=shape,
        dtype=dtype,
        classes=max(2, int(labels.max(initial=0)) + 1),
    )


def record_table(
    *,
    record_ids: npt.ArrayLike,
    labels: npt.ArrayLike,
    features: npt.NDArray[np.generic],
    subject_ids: npt.ArrayLike | None = None,
) -> pa.Table:
    """Return the table in the upload format; ``features`` has shape (n, …)."""
    columns = {
        "record_id": pa.array(np.asarray(record_ids).astype(str)),
        "label": pa.array(np.asarray(labels).astype(np.int64)),
        "features": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(features)),
    }
    if subject_ids is not None:
        columns["subject_id"] = pa.array(np.asarray(subject_ids).astype(str))
    return pa.table(columns)


def to_parquet(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _refuse_bomb(path: Path) -> None:
    """Reject a file whose announced unpacked size is too large; zip members cannot exceed it."""
    unpacked = path.stat().st_size
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    elif path.suffix == ".parquet":
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        unpacked = sum(group.total_byte_size for group in groups)
    if unpacked > MAX_UNPACKED_BYTES:
        raise InvalidInputError(
            f"{path.name} unpacks to {unpacked} bytes; the limit is {MAX_UNPACKED_BYTES}"
        )


def _read_csv(path: Path) -> pa.Table:
    table = pyarrow.csv.read_csv(path, convert_options=_CSV_CONVERSION)
    if len(set(table.column_names)) != len(table.column_names):
        raise InvalidInputError(f"{path.name}: column names must be unique")
    known = [c for c in ("record_id", "subject_id", "label") if c in table.column_names]
    columns = [name for name in table.column_names if name not in known]
    if not columns:
        raise InvalidInputError(f"{path.name} has no feature columns")
    try:
        features = np.stack([table[name].to_numpy().astype(np.float32) for name in columns], axis=1)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"{path.name}: every feature column must hold numbers") from error
    return table.select(known).append_column(
        "features", pa.FixedShapeTensorArray.from_numpy_ndarray(features)
    )


def _read_npz(path: Path) -> pa.Table:
    with np.load(path, allow_pickle=False) as arrays:
        for name in ("record_id", "label", "features"):
            if name not in arrays:
                raise InvalidInputError(f"{path.name} has no array {name!r}")
        if arrays["label"].dtype.kind not in "iu":
            raise InvalidInputError(f"{path.name}: array 'label' must hold whole numbers")
        return record_table(
            record_ids=arrays["record_id"],
            labels=arrays["label"],
            features=arrays["features"],
            subject_ids=arrays.get("subject_id", None),
        )


def _feature_type(table: pa.Table) -> tuple[tuple[int, ...], str]:
    kind = table.schema.field("features").type
    shape: tuple[int, ...] | None = None
    if isinstance(kind, pa.FixedShapeTensorType):
        shape = tuple(kind.shape)
        kind = kind.storage_type
    if isinstance(kind, pa.FixedSizeListType):
        shape = shape or (kind.list_size,)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        first = table["features"][0].as_py() if table.num_rows else None
        shape = (len(first or ()),)
    if shape is None or math.prod(shape) == 0:
        raise InvalidInputError("column 'features' must be a list or tensor of numbers")
    return shape, "uint8" if kind.value_type == pa.uint8() else "float32"
