"""Text tables: CSV and its relatives. Every cell stays text; what it means, its column's rule says.

A type that is guessed from one file's cells would be another one in the next file.
"""

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from app.domain.errors import InvalidInputError, InvalidRecordsError, RowProblem
from app.registry.datasets.columns.cells import MISSING_WORDS
from app.registry.datasets.columns.problems import Problems

_DELIMITERS: Final = ",;\t|"
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEADER_BYTES: Final = 1 << 20
_BLOCKS: Final = (4 << 20, 64 << 20, 1 << 30)
"""How many bytes are parsed at once; more only where a row is larger."""
_UNNAMED: Final = re.compile(r"Unnamed: \d+")
_COMMA_NUMBER: Final = r"^\s*[+-]?\d+(,\d+)?\s*$"


@dataclass(frozen=True)
class Dialect:
    """How a text table is written, as far as its user says.

    Attributes:
        delimiter: one character; None finds it in the first line.
        encoding: a codec's name; None takes the byte order mark's, or UTF-8.
        decimal: ``.`` or ``,``.
    """

    delimiter: str | None = None
    encoding: str | None = None
    decimal: str = "."

    def __post_init__(self) -> None:
        if self.delimiter is not None and len(self.delimiter.encode()) != 1:
            raise InvalidInputError("the delimiter must be one character")
        if self.decimal not in (".", ","):
            raise InvalidInputError("the decimal sign must be a point or a comma")
        try:
            codecs.lookup(self.encoding or "utf-8").name.encode("ascii")
        except (LookupError, ValueError) as error:
            raise InvalidInputError(f"unknown encoding {self.encoding!r}") from error

    @classmethod
    def of_options(cls, delimiter: str | None, encoding: str | None, decimal: str) -> Self:
        """Read a command line's options, where a tab is called ``tab``."""
        tabs = {"tab": "\t", "\\t": "\t"}
        return cls(delimiter and tabs.get(delimiter, delimiter), encoding, decimal)


Chunks = Callable[[], Iterator[bytes]]
"""Yields a file's bytes, each time from the first on."""


class Delimited:
    """A text table that is read block by block.

    Attributes:
        names: of its columns, as they are written.
    """

    def __init__(self, chunks: Chunks, dialect: Dialect) -> None:
        self._chunks = chunks
        self._dialect = dialect
        self._with_commas: set[str] | None = None
        text = next(_texts(chunks(), dialect), "")
        start, self._delimiter = _beginning(text, dialect.delimiter)
        self._header, length = _header(text[start:], self._delimiter)
        self._skipped = start + length
        named = [place for place, name in enumerate(self._header) if name.strip()]
        self.names = self._header[: max(named, default=0) + 1]

    def read(self) -> Iterator[pa.Table]:
        """Yield the rows, whose columns are numbered, and whose cells are text.

        Raises:
            InvalidRecordsError: it is no table; the error has the rows' numbers.
        """
        if self._dialect.decimal == ",":
            if self._with_commas is None:
                self._with_commas = _columns_with_commas(self._rows())
            for table in self._rows():
                yield pa.table(
                    {
                        name: _with_points(column) if name in self._with_commas else column
                        for name, column in zip(table.column_names, table.columns, strict=True)
                    }
                )
        else:
            yield from self._rows()

    def _rows(self) -> Iterator[pa.Table]:
        """Yield the rows, and parse larger blocks where one does not hold a row."""
        rows = 0
        for block_bytes in _BLOCKS:
            body, problems = self._body(), Problems()
            seen = 0
            try:
                for table in self._blocks(body, block_bytes, problems):
                    left = table.slice(max(0, rows - seen))
                    seen += len(table)
                    if len(left):
                        rows = seen
                        yield self._named(left)
            except pa.ArrowInvalid as error:
                body = self._body()  # Arrow may still be reading ahead in the other
                body.read_all()
                self._refuse_open_quote(body.quotes)
                if "straddling" in str(error) and block_bytes < _BLOCKS[-1]:
                    continue
                # The message may hold cells.
                reason = "the rows cannot be read as text with delimiters"
                raise _fault(None, self._header[0], reason) from error
            self._refuse_open_quote(body.quotes)
            problems.raise_any()
            return

    def _body(self) -> "_Body":
        return _Body(_texts(self._chunks(), self._dialect), self._skipped)

    def _blocks(self, body: "_Body", block_bytes: int, problems: Problems) -> Iterator[pa.Table]:
        names = self._header

        def note(row: pyarrow.csv.InvalidRow) -> str:
            found = row.actual_columns
            column = names[found] if found < len(names) else str(len(names) + 1)
            reason = f"the row has {found} cells, the header {len(names)}"
            problems.add(row.number - 1, column, reason)
            return "skip"

        if body.is_blank:
            return
        places = [str(place) for place in range(len(names))]
        reader = pyarrow.csv.open_csv(
            pa.PythonFile(io.BufferedReader(body), mode="r"),
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False,  # otherwise rows have no numbers
                column_names=places,
                block_size=block_bytes,
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=note
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(places, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        for batch in reader:
            yield pa.Table.from_batches([batch])

    def _named(self, table: pa.Table) -> pa.Table:
        for place in range(len(self.names), len(self._header)):
            # All lines end with delimiters, or this is a column.
            if table.column(place).null_count < len(table):
                raise _fault(None, str(place + 1), "has no name in the header")
        return table.select(range(len(self.names)))

    def _refuse_open_quote(self, quotes: int) -> None:
        """Name the row from which on one of the quotation marks is open."""
        if quotes % 2 == 0:
            return
        lines = io.TextIOWrapper(io.BufferedReader(self._body()), encoding="utf-8", newline="")
        reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
        csv.field_size_limit(1 << 30)
        row = -1
        try:
            for cells in reader:
                row += bool(cells)
        except csv.Error as error:
            reason = "a quotation mark that is not closed in its cell"
            raise _fault(row + 1, self._header[0], reason) from error


class _Body(io.RawIOBase):
    """A text after its header, as UTF-8.

    Attributes:
        quotes: how many quotation marks there are in what was read.
    """

    def __init__(self, texts: Iterator[str], skipped: int) -> None:
        self._texts = texts
        self._held = memoryview(next(texts, "")[skipped:].encode())
        self.quotes = bytes(self._held).count(b'"')

    @property
    def is_blank(self) -> bool:
        """Whether there are no rows."""
        while not bytes(self._held).strip():
            if not self._next():
                return True
        return False

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a buffer
        """Read some bytes; 0 at the end."""
        while not self._held and self._next():
            pass
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size

    def read_all(self) -> None:
        """Pass over what is left."""
        while self._next():
            pass

    def _next(self) -> bool:
        text = next(self._texts, None)
        content = b"" if text is None else text.encode()
        self._held = memoryview(content)
        self.quotes += content.count(b'"')
        return text is not None


def _texts(chunks: Iterator[bytes], dialect: Dialect) -> Iterator[str]:
    """Yield a file's text, of which the first piece holds the header."""
    first = next(chunks, b"")
    marked = next((codec for bom, codec in _BOMS if first.startswith(bom)), None)
    codec = dialect.encoding or marked or "utf-8"
    read = _Read(dialect)
    try:
        decoder = codecs.getincrementaldecoder(codec)()
        for chunk in chain([first], chunks, [b""]):
            text = decoder.decode(chunk, final=not chunk)
            if read.lines == 0:
                text = text.removeprefix("\ufeff")
            place = text.find("\0")
            if place >= 0:
                read.add(text[:place])
                raise read.fault("bytes of 0; pass --encoding, such as utf-16")
            read.add(text)
            yield text
    except UnicodeDecodeError as error:
        read.add(error.object[: error.start].decode(codec, errors="replace"))
        reason = f"bytes that are not {codec}; pass --encoding, such as cp1252"
        raise read.fault(reason) from error
    except (UnicodeError, LookupError, TypeError, AttributeError) as error:
        raise _fault(None, "", f"cannot be read as {codec}") from error


class _Read:
    """What was read of a text so far: its header, and the line where it ends.

    Attributes:
        lines: how many were read to their ends.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._first: str | None = None
        self._last = ""
        self.lines = 0

    def add(self, text: str) -> None:
        """Go on by some text."""
        ends = text.count("\n") or text.count("\r")
        if self._first is None:
            lines = (self._last + text).splitlines()
            self._first = lines[0] if ends and lines else None
        after = 1 + max(text.rfind("\n"), text.rfind("\r"))
        self._last = text[after:] if ends else self._last + text
        self.lines += ends

    def fault(self, reason: str) -> InvalidRecordsError:
        """Return the error for the cell that begins in the last line."""
        first = self._last if self._first is None else self._first
        delimiter = self._dialect.delimiter or _likely(first)
        if self._first is None:
            return _fault(None, f"{1 + first.count(delimiter)} of the header", reason)
        names = first.split(delimiter)
        column = self._last.count(delimiter)
        name = names[column].strip('" ') if column < len(names) else str(column + 1)
        return _fault(self.lines - 1, name, reason)


def looks_unnamed(name: str) -> bool:
    """Return whether pandas wrote a column without a name: its index."""
    return not name or bool(_UNNAMED.fullmatch(name))


def _beginning(text: str, delimiter: str | None) -> tuple[int, str]:
    """Return where the header begins, and the delimiter; Excel may announce it as ``sep=;``."""
    start = len(text) - len(text.lstrip("\r\n"))
    announced = re.match(r"sep=(.)\r?\n", text[start : start + 16])
    if announced:
        return start + announced.end(), delimiter or announced[1]
    return start, delimiter or _likely(text[start : start + _HEADER_BYTES])


def _likely(text: str) -> str:
    """Return the delimiter that is most frequent in the first line, outside of quotes."""
    first = re.sub(r'"[^"]*"', "", text).splitlines()
    counts = {each: first[0].count(each) if first else 0 for each in _DELIMITERS}
    return max(counts, key=lambda each: counts[each])


def _header(text: str, delimiter: str) -> tuple[list[str], int]:
    """Return the names in the first row, and its length."""
    lines = io.StringIO(text[:_HEADER_BYTES], newline="")
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        names = next(reader)
    except StopIteration as error:
        raise _fault(None, "1", "the file is empty") from error
    except csv.Error as error:
        raise _fault(None, "1", "the header cannot be read") from error
    lines.seek(0)
    length = sum(len(lines.readline()) for _ in range(reader.line_num))
    if all(re.fullmatch(r"\s*[+-]?[\d.]+([eE][+-]?\d+)?\s*", name) for name in names):
        raise _fault(None, names[0], "a number in place of a name: the first line must be a header")
    return names, length


def _columns_with_commas(tables: Iterator[pa.Table]) -> set[str]:
    """Return the columns that are mostly numbers, with decimal commas."""
    more: Counter[str] = Counter()
    for table in tables:
        for name, column in zip(table.column_names, table.columns, strict=True):
            fits = pc.sum(pc.match_substring_regex(column, _COMMA_NUMBER)).as_py() or 0
            missing = pc.sum(pc.is_in(column, pa.array([None, *MISSING_WORDS]))).as_py()
            more[name] += 2 * fits - (len(column) - missing)
    return {name for name, count in more.items() if count > 0}


def _with_points(column: pa.ChunkedArray) -> pa.ChunkedArray:
    fits = pc.match_substring_regex(column, _COMMA_NUMBER)
    return pc.if_else(fits, pc.replace_substring(column, ",", "."), column)


def _fault(row: int | None, column: str, reason: str) -> InvalidRecordsError:
    return InvalidRecordsError([RowProblem(row, column, reason)], 1)
