"""Reads a table from any file of its owner: by what the file holds, not by what it is called."""

import gzip
import io
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from app.domain.columns import normal_text
from app.domain.errors import PayloadTooLargeError, TableError
from app.registry.datasets.columns.delimited import Delimited, Dialect, looks_unnamed
from app.registry.datasets.columns.parquet import EncryptedFileError, opened
from app.registry.datasets.columns.sources import INDEX, Source, TableFile, as_table

MAX_UNPACKED_BYTES = 8 << 30
"""Limit on a local table's unpacked size."""

_CHUNK_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 3 << 20
"""About how much of a table is read at once."""
_BUFFERED_BYTES: Final = 1 << 20
"""How much of a Parquet file's columns is read ahead."""
_GZIP: Final = b"\x1f\x8b"
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
_HEADERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_source(path: Path, *more: Path, dialect: Dialect | None = None) -> Source:
    """Open CSV (also gzip), Parquet, Arrow or npz files, or folders of such files, in order."""
    files = [each for one in (path, *more) for each in _opened_all(one, dialect or Dialect())]
    for file in files[1:]:
        if odd := set(file.schema.names) ^ set(files[0].schema.names):
            raise TableError([f"{file.name}: column {min(odd)!r}: not in all of the files"])
    source = Source(files[0].name if len(files) == 1 else path.name, files)
    try:
        _ = source.types
    except pa.ArrowException as error:
        raise TableError([f"{path.name}: a column has another type in each file"]) from error
    return source


def source_of(rows: Any, name: str) -> Source:  # noqa: ANN401 - of any library
    """Return a table that is in memory, of pandas, polars or Arrow, as if it were a file."""
    table = as_table(rows)
    names, index = _named(table.schema, name)
    table = table.rename_columns(names)
    return Source(name, [TableFile(name, table.schema, lambda: [table], index)])


def _opened_all(path: Path, dialect: Dialect) -> Iterator[TableFile]:
    if not path.is_dir():
        yield _opened_file(path, path.name, dialect)
        return
    paths = sorted(
        p
        for p in path.rglob("*")
        if p.is_file()
        and not any(part.startswith((".", "_")) for part in p.relative_to(path).parts)
    )
    if not paths:
        raise TableError([f"{path.name}: the folder has no files"])
    for each in paths:
        file = _opened_file(each, str(each.relative_to(path.parent)), dialect)
        yield _with_folders(file, each.relative_to(path))


_Read = Callable[[], Iterator[pa.Table]]


def _opened_file(path: Path, name: str, dialect: Dialect) -> TableFile:
    with _told(name):
        content = _Content(path, name)
        kind, schema, read = _opened(content, dialect)
    names, index = _named(schema, name)

    def rows() -> Iterator[pa.Table]:
        with _told(name):
            for table in read():
                yield table.rename_columns(names)

    renamed = pa.schema([field.with_name(each) for field, each in zip(schema, names, strict=True)])
    return TableFile(name, renamed, rows, index, kind)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Turn what a file is refused for into ``TableError``."""
    try:
        with Source(name, [], firsts=[(name, 0)]).places():
            yield
    except (EncryptedFileError, PayloadTooLargeError) as error:
        raise TableError([f"{name}: {error}"]) from error
    except TableError:
        raise
    except _UNREADABLE as error:
        raise TableError([f"{name}: cannot be read: {type(error).__name__}"]) from error


class _Content:
    """A file's bytes, which are read more than once; those of gzip are unpacked.

    Attributes:
        name: for errors.
        head: the first bytes.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._held = None if path.is_file() else path.read_bytes()
        self.name = name
        with closing(self.chunks()) as chunks:
            self.head = next(chunks, b"")

    def chunks(self) -> Generator[bytes, None, None]:
        """Yield all bytes in order."""
        with self.opened() as file:
            stream: IO[bytes] = file
            if is_packed := file.read(len(_GZIP)) == _GZIP:
                stream = gzip.GzipFile(fileobj=file)  # type: ignore[assignment]
            file.seek(0)
            size = 0
            while chunk := stream.read(_CHUNK_BYTES):
                size += len(chunk)
                if is_packed:
                    _require_room(size, self.name)
                yield chunk

    def unpack(self) -> None:
        """Hold what is packed in memory, so that it can be read at any place."""
        with self.opened() as file:
            is_packed = file.read(len(_GZIP)) == _GZIP
        if is_packed:
            self._held = b"".join(self.chunks())

    def opened(self) -> IO[bytes]:
        """Open the file as it is stored."""
        return self._path.open("rb") if self._held is None else io.BytesIO(self._held)

    def native(self, *, mapped: bool = False) -> pa.NativeFile:
        """Open the file for Arrow."""
        if self._held is not None:
            return pa.BufferReader(self._held)
        return (pa.memory_map if mapped else pa.OSFile)(str(self._path), "rb")


def _opened(content: _Content, dialect: Dialect) -> tuple[str, pa.Schema, _Read]:
    """Return a file's kind, its columns, and what reads it."""
    head, name = content.head, content.name
    if not head.strip():
        raise TableError([f"{name}: the file is empty"])
    for beginnings, kind, open_ in _KINDS:
        if head.startswith(beginnings):
            content.unpack()
            return kind, *open_(content)
    for beginning, words in _FOREIGN:
        if head.startswith(beginning):
            raise TableError([f"{name}: this is {words}"])
    if head[:1] in (b"{", b"["):
        raise TableError([f"{name}: this is JSON: write Parquet or CSV"])
    text = Delimited(content.chunks, dialect)
    return "CSV", pa.schema([(each, pa.string()) for each in text.names]), text.read


def _opened_parquet(content: _Content) -> tuple[pa.Schema, _Read]:
    def file() -> pq.ParquetFile:
        source = content.native()
        return opened(source, most_footer_bytes=source.size())

    metadata, schema = (found := file()).metadata, found.schema_arrow
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    announced = sum(group.total_byte_size for group in groups)
    _require_room(announced, content.name)
    row_bytes = max(8 * len(schema.names), announced // max(1, metadata.num_rows))
    ahead = max(1 << 14, _BUFFERED_BYTES // max(1, len(schema.names)))

    def read() -> Iterator[pa.Table]:
        source = content.native()
        reader = pq.ParquetFile(source, metadata=metadata, pre_buffer=False, buffer_size=ahead)
        for batch in reader.iter_batches(max(1, _PIECE_BYTES // row_bytes), use_threads=False):
            yield pa.Table.from_batches([batch])

    return schema, read


def _opened_arrow(content: _Content) -> tuple[pa.Schema, _Read]:
    is_file = content.head.startswith(b"ARROW1")

    def reader() -> Any:  # noqa: ANN401 - one of two that have no common type
        return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(content.native(mapped=True))

    def read() -> Iterator[pa.Table]:
        found = reader()
        numbers = range(found.num_record_batches) if is_file else ()
        for batch in map(found.get_batch, numbers) if is_file else found:
            batch.validate(full=True)
            yield pa.Table.from_batches([batch])

    return reader().schema, read


def _opened_npz(content: _Content) -> tuple[pa.Schema, _Read]:
    name = content.name
    with zipfile.ZipFile(content.opened()) as archive:
        members = archive.infolist()
        if any(member.filename.startswith("xl/") for member in members):
            raise TableError([f"{name}: this is an Excel workbook: save the sheet as CSV"])
        if not all(member.filename.endswith(".npy") for member in members):
            raise TableError([f"{name}: this is a zip archive: unpack it, or use gzip"])
        _require_room(sum(member.file_size for member in members), name)
        arrays = [_Stored(archive, member, name) for member in members]
    lengths = {array.name: array.shape[0] for array in arrays}
    for each, length in lengths.items():
        if length != arrays[0].shape[0]:
            raise TableError([f"{name}: column {each!r}: {length} rows, unlike the first array's"])
    schema = pa.schema([(array.name, array.column_type) for array in arrays])
    at_once = max(1, _PIECE_BYTES // max(1, sum(array.row_bytes for array in arrays)))

    def read() -> Iterator[pa.Table]:
        with zipfile.ZipFile(content.opened()) as archive:
            streams = [array.rows(archive, at_once) for array in arrays]
            for columns in zip(*streams, strict=True):
                yield pa.Table.from_arrays(list(map(_column, columns)), schema=schema)

    return schema, read


class _Stored:
    """An array in an archive.

    Attributes:
        name: the column's.
        shape: its own.
    """

    def __init__(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: str) -> None:
        self._member = member
        self.name = member.filename.removesuffix(".npy")
        with archive.open(member) as stream:
            self.shape, self._is_fortran, self._dtype = self._header(stream)
        if self._dtype.hasobject:  # it would have to be unpickled
            reason = "Python objects; save text as arrays of type str"
            raise TableError([f"{file}: column {self.name!r}: {reason}"])
        if not self.shape:
            reason = "a single value in place of one for each row"
            raise TableError([f"{file}: column {self.name!r}: {reason}"])

    @property
    def row_bytes(self) -> int:
        """How many bytes a row takes."""
        return self._dtype.itemsize * math.prod(self.shape[1:])

    @property
    def column_type(self) -> pa.DataType:
        """The type of its column."""
        return _column(np.zeros((1, *self.shape[1:]), dtype=self._dtype)).type

    def rows(self, archive: zipfile.ZipFile, at_once: int) -> Iterator[npt.NDArray[Any]]:
        """Yield some rows at a time; of an array in Fortran's order, all are read before."""
        with archive.open(self._member) as stream:
            self._header(stream)
            if self._is_fortran and len(self.shape) > 1:
                content = stream.read(self.row_bytes * self.shape[0])
                whole = np.frombuffer(content, self._dtype).reshape(self.shape, order="F")
                for begin in range(0, self.shape[0], at_once):
                    yield whole[begin : begin + at_once]
                return
            for begin in range(0, self.shape[0], at_once):
                count = min(at_once, self.shape[0] - begin)
                content = stream.read(self.row_bytes * count)
                yield np.frombuffer(content, self._dtype).reshape(count, *self.shape[1:])

    @staticmethod
    def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        return _HEADERS[np.lib.format.read_magic(stream)](stream)


def _column(array: npt.NDArray[Any]) -> pa.Array:
    if array.ndim > 1:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))
    return pa.array(array.astype(str) if array.dtype.kind == "S" else array)


_KINDS: Final = (
    ((b"PAR1", b"PARE"), "Parquet", _opened_parquet),
    ((b"ARROW1", b"\xff\xff\xff\xff"), "Arrow", _opened_arrow),
    ((b"PK\x03\x04",), "npz", _opened_npz),
)


def _require_room(size: int, name: str) -> None:
    if size > MAX_UNPACKED_BYTES:
        raise TableError(
            [f"{name}: unpacks to {size} bytes or more; the limit is {MAX_UNPACKED_BYTES}"]
        )


def _named(schema: pa.Schema, file: str) -> tuple[list[str], str | None]:
    """Return the columns' names in one spelling, and pandas' index column."""
    spelt = [" ".join(normal_text(name).split()) for name in schema.names]
    indices = []
    for place, name in enumerate(spelt):
        if place == 0 and looks_unnamed(name):
            indices.append(INDEX)
            spelt[0] = INDEX
        elif name == "__index_level_0__":
            spelt[place] = INDEX
        elif not name:
            raise TableError([f"{file}: column {place + 1}: has no name in the header"])
    indices += [name for name in _index_names(schema) if name in spelt]
    for name, count in Counter(spelt).items():
        if count > 1:
            raise TableError([f"{file}: column {name!r}: occurs twice"])
        if not name.isprintable():
            raise TableError([f"{file}: column {spelt.index(name) + 1}: its name is not text"])
    return spelt, indices[0] if len(indices) == 1 else None


def _index_names(schema: pa.Schema) -> Iterator[str]:
    try:
        said = schema.pandas_metadata
    except (ValueError, RecursionError):  # any tool may write anything there
        return
    names = said.get("index_columns") if isinstance(said, dict) else None
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str):
            yield INDEX if name == "__index_level_0__" else normal_text(name)


def _with_folders(file: TableFile, path: Path) -> TableFile:
    """Add the columns that folders such as ``month=2026-01`` stand for."""
    added: dict[str, str] = {}
    for folder in path.parent.parts:
        name, sign, value = folder.partition("=")
        if sign and name not in file.schema.names:
            added.setdefault(name, value)

    def read() -> Iterator[pa.Table]:
        for table in file.read():
            for name, value in added.items():
                table = table.append_column(name, pa.repeat(value, len(table)))  # noqa: PLW2901
            yield table

    fields = [*file.schema, *(pa.field(name, pa.string()) for name in added)]
    return replace(file, schema=pa.schema(fields), read=read)
