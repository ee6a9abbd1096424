"""Reads a table from any file of its owner: by what the file holds, not by what it is called."""

import gzip
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.domain.columns import normal_text
from app.domain.errors import PayloadTooLargeError, TableError
from app.registry.datasets.columns.cells import plain
from app.registry.datasets.columns.delimited import Dialect, looks_unnamed, read_delimited
from app.registry.datasets.columns.parquet import EncryptedFileError, opened
from app.registry.datasets.columns.sources import INDEX, Source

MAX_UNPACKED_BYTES = 8 << 30
"""Limit on a local table's unpacked size."""

_FOREIGN: Final = (
    (b"\xd0\xcf\x11\xe0", "an Excel workbook: save the sheet as CSV"),
    (b"\x89HDF", "an HDF5 file: write Parquet or CSV"),
    (b"SQLite format 3", "an SQLite database: export the table as CSV"),
    (b"\x80\x04", "a pickle, which is never loaded: write Parquet or CSV"),
    (b"\x80\x05", "a pickle, which is never loaded: write Parquet or CSV"),
    (b"BZh", "compressed by bzip2: unpack it, or use gzip"),
    (b"\xfd7zXZ", "compressed by xz: unpack it, or use gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it, or use gzip"),
    (b"\x93NUMPY", "a single array: save the columns with numpy.savez"),
    (b"FEA1", "Feather of version 1: write version 2"),
)
_UNREADABLE: Final = (
    pa.ArrowException,
    OSError,
    EOFError,
    ValueError,
    TypeError,
    MemoryError,
    KeyError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_source(path: Path, *more: Path, dialect: Dialect | None = None) -> Source:
    """Read CSV (also gzip), Parquet, Arrow or npz files, or folders of such files, in order."""
    sources = [each for one in (path, *more) for each in _read_all(one, dialect or Dialect())]
    return sources[0] if len(sources) == 1 else _joined(path.name, sources)


def _read_all(path: Path, dialect: Dialect) -> Iterator[Source]:
    if not path.is_dir():
        yield _read_file(path, path.name, dialect)
        return
    paths = sorted(p for p in path.rglob("*") if p.is_file() and _is_visible(p, path))
    if not paths:
        raise TableError([f"{path.name}: the folder has no files"])
    for each in paths:
        source = _read_file(each, str(each.relative_to(path.parent)), dialect)
        yield _with_folders(source, each.relative_to(path))


def _joined(name: str, sources: Sequence[Source]) -> Source:
    for source in sources[1:]:
        if set(source.table.column_names) != set(sources[0].table.column_names):
            odd = set(source.table.column_names) ^ set(sources[0].table.column_names)
            raise TableError([f"{source.name}: column {min(odd)!r}: not in all of the files"])
    columns = sources[0].table.column_names
    tables = [pa.table({each: plain(s.table[each]) for each in columns}) for s in sources]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise TableError([f"{name}: a column has another type in each file"]) from error
    firsts = np.cumsum([0, *(len(each) for each in tables)]).tolist()
    files = [(source.name, first) for source, first in zip(sources, firsts, strict=False)]
    return Source(name, table, files, sources[0].index, sources[0].kind)


def _read_file(path: Path, name: str, dialect: Dialect) -> Source:
    try:
        with path.open("rb") as file:
            content = file.read()
        if content.startswith(b"\x1f\x8b"):
            content = _unzipped(content, name)
        kind, reader = _reader(content, name)
        with Source(name, pa.table({}), [(name, 0)], None, kind).places():
            names, table = reader(content, name, dialect)
    except (EncryptedFileError, PayloadTooLargeError) as error:
        raise TableError([f"{name}: {error}"]) from error
    except TableError:
        raise
    except _UNREADABLE as error:
        raise TableError([f"{name}: cannot be read: {type(error).__name__}"]) from error
    table, index = _named(table, names, name)
    if table.num_rows == 0:
        raise TableError([f"{name}: the table has no rows"])
    return Source(name, table, [(name, 0)], index, kind)


_Reader = Callable[[bytes, str, Dialect], tuple[list[str], pa.Table]]


def _reader(content: bytes, name: str) -> tuple[str, _Reader]:
    if not content.strip():
        raise TableError([f"{name}: the file is empty"])
    if content.startswith((b"PAR1", b"PARE")):
        return "Parquet", _read_parquet
    if content.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "Arrow", _read_arrow
    if content.startswith(b"PK\x03\x04"):
        return "npz", _read_npz
    for beginning, words in _FOREIGN:
        if content.startswith(beginning):
            raise TableError([f"{name}: this is {words}"])
    if content[:1] in (b"{", b"["):
        raise TableError([f"{name}: this is JSON: write Parquet or CSV"])
    return "CSV", lambda text, _, dialect: read_delimited(text, dialect)


def _read_parquet(content: bytes, name: str, _: Dialect) -> tuple[list[str], pa.Table]:
    file = opened(pa.BufferReader(content), most_footer_bytes=len(content))
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    _require_room(sum(group.total_byte_size for group in groups), name)
    table = file.read(use_threads=False)
    return table.column_names, table


def _read_arrow(content: bytes, _name: str, _: Dialect) -> tuple[list[str], pa.Table]:
    source = pa.BufferReader(content)
    is_file = content.startswith(b"ARROW1")
    table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source).read_all()
    table.validate(full=True)
    return table.column_names, table


def _read_npz(content: bytes, name: str, _: Dialect) -> tuple[list[str], pa.Table]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if any(member.filename.startswith("xl/") for member in members):
            raise TableError([f"{name}: this is an Excel workbook: save the sheet as CSV"])
        if not all(member.filename.endswith(".npy") for member in members):
            raise TableError([f"{name}: this is a zip archive: unpack it, or use gzip"])
        _require_room(sum(member.file_size for member in members), name)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        columns = {each: _column(arrays, each, name) for each in arrays.files}
    lengths = {each: len(column) for each, column in columns.items()}
    for each, length in lengths.items():
        if length != next(iter(lengths.values())):
            raise TableError([f"{name}: column {each!r}: {length} rows, unlike the first array's"])
    return list(columns), pa.table(columns)


def _column(arrays: np.lib.npyio.NpzFile, each: str, name: str) -> pa.Array:
    try:
        array: npt.NDArray[np.generic] = arrays[each]
    except ValueError as error:  # it would have to be unpickled
        raise TableError(
            [f"{name}: column {each!r}: Python objects; save text as arrays of type str"]
        ) from error
    if array.ndim == 0:
        raise TableError([f"{name}: column {each!r}: a single value in place of one for each row"])
    if array.ndim > 1:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))
    return pa.array(array.astype(str) if array.dtype.kind == "S" else array)


def _unzipped(content: bytes, name: str) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
        unpacked = packed.read(MAX_UNPACKED_BYTES + 1)
    _require_room(len(unpacked), name)
    return unpacked


def _require_room(size: int, name: str) -> None:
    if size > MAX_UNPACKED_BYTES:
        raise TableError(
            [f"{name}: unpacks to {size} bytes or more; the limit is {MAX_UNPACKED_BYTES}"]
        )


def _named(table: pa.Table, names: list[str], file: str) -> tuple[pa.Table, str | None]:
    """Give the columns their names in one spelling; return pandas' index column, too."""
    spelt = [" ".join(normal_text(name).split()) for name in names]
    indices = []
    for place, name in enumerate(spelt):
        if place == 0 and looks_unnamed(name):
            indices.append(INDEX)
            spelt[0] = INDEX
        elif name == "__index_level_0__":
            spelt[place] = INDEX
        elif not name:
            raise TableError([f"{file}: column {place + 1}: has no name in the header"])
    indices += [name for name in _index_names(table.schema) if name in spelt]
    for name, count in Counter(spelt).items():
        if count > 1:
            raise TableError([f"{file}: column {name!r}: occurs twice"])
        if not name.isprintable():
            raise TableError([f"{file}: column {spelt.index(name) + 1}: its name is not text"])
    return table.rename_columns(spelt), indices[0] if len(indices) == 1 else None


def _index_names(schema: pa.Schema) -> Iterator[str]:
    try:
        said = schema.pandas_metadata
    except (ValueError, RecursionError):  # any tool may write anything there
        return
    names = said.get("index_columns") if isinstance(said, dict) else None
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str):
            yield INDEX if name == "__index_level_0__" else normal_text(name)


def _is_visible(path: Path, folder: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)


def _with_folders(source: Source, path: Path) -> Source:
    """Add the columns that folders such as ``month=2026-01`` stand for."""
    table = source.table
    for folder in path.parent.parts:
        name, sign, value = folder.partition("=")
        if sign and name not in table.column_names:
            table = table.append_column(name, pa.array([value] * len(table)))
    return Source(source.name, table, source.files, source.index, source.kind)
