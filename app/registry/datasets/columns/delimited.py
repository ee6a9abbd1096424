"""Text tables: CSV and its relatives. Every cell stays text; what it means, its column's rule says.

A type that is guessed from one file's cells would be another one in the next file.
"""

import codecs
import csv
import io
import re
from dataclasses import dataclass
from typing import Final, Self

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


def read_delimited(content: bytes, dialect: Dialect) -> tuple[list[str], pa.Table]:
    """Return the header's names, as they are written, and the columns as text."""
    text = _decoded(content, dialect)
    start, delimiter = _beginning(text, dialect.delimiter)
    names, length = _header(text[start:], delimiter)
    body = text[start + length :].encode()
    del text
    if body.count(b'"') % 2:
        _refuse_open_quote(body, delimiter, names)
    table = _parsed(body, delimiter, names)
    if names and not names[-1].strip() and table.column(len(names) - 1).null_count == len(table):
        names, table = names[:-1], table.remove_column(len(names) - 1)  # lines end with delimiters
    if dialect.decimal == ",":
        table = pa.table({str(i): _with_points(column) for i, column in enumerate(table.columns)})
    return names, table


def looks_unnamed(name: str) -> bool:
    """Return whether pandas wrote a column without a name: its index."""
    return not name or bool(_UNNAMED.fullmatch(name))


def _decoded(content: bytes, dialect: Dialect) -> str:
    marked = next((codec for bom, codec in _BOMS if content.startswith(bom)), None)
    codec = dialect.encoding or marked or "utf-8"
    try:
        text = content.decode(codec)
    except UnicodeDecodeError as error:
        before = content[: error.start].decode(codec, errors="replace")
        raise _at(
            before, dialect, f"bytes that are not {codec}; pass --encoding, such as cp1252"
        ) from error
    except (UnicodeError, LookupError, TypeError, AttributeError) as error:
        raise _fault(None, "", f"cannot be read as {codec}") from error
    text = text.removeprefix("\ufeff")
    place = text.find("\0")
    if place >= 0:
        raise _at(text[:place], dialect, "bytes of 0; pass --encoding, such as utf-16")
    return text


def _at(before: str, dialect: Dialect, reason: str) -> InvalidRecordsError:
    """Return the error for the cell that begins in the last line of ``before``."""
    lines = before.splitlines() or [""]
    delimiter = dialect.delimiter or _likely(lines[0])
    if before.endswith(("\n", "\r")):
        lines.append("")
    if len(lines) == 1:
        return _fault(None, f"{1 + lines[0].count(delimiter)} of the header", reason)
    names = lines[0].split(delimiter)
    column = lines[-1].count(delimiter)
    name = names[column].strip('" ') if column < len(names) else str(column + 1)
    return _fault(len(lines) - 2, name, reason)


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


def _parsed(body: bytes, delimiter: str, names: list[str]) -> pa.Table:
    places = [str(place) for place in range(len(names))]
    if not body.strip():
        return pa.table({place: pa.array([], pa.string()) for place in places})
    problems = Problems()

    def note(row: pyarrow.csv.InvalidRow) -> str:
        found = row.actual_columns
        column = names[found] if found < len(names) else str(len(names) + 1)
        problems.add(row.number - 1, column, f"the row has {found} cells, the header {len(names)}")
        return "skip"

    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(body),
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False,  # otherwise rows have no numbers
                column_names=places,
                block_size=min(len(body) + 1024, 1 << 30),
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(places, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:  # its message may hold cells
        raise _fault(None, names[0], "the rows cannot be read as text with delimiters") from error
    problems.raise_any()
    return table


def _refuse_open_quote(body: bytes, delimiter: str, names: list[str]) -> None:
    """Name the row from which on a quotation mark is open."""
    first = row = -1
    reader = csv.reader(io.StringIO(body.decode(), newline=""), delimiter=delimiter, strict=True)
    csv.field_size_limit(1 << 30)
    try:
        for cells in reader:
            row += bool(cells)
    except csv.Error:
        first = row + 1
    column = names[0] if names else "1"
    if first >= 0:
        raise _fault(first, column, "a quotation mark that is not closed in its cell")


def _with_points(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write numbers with decimal commas, in a column that is mostly numbers, with points."""
    fits = pc.match_substring_regex(column, _COMMA_NUMBER)
    cells = len(column) - pc.sum(pc.is_in(column, pa.array([None, *MISSING_WORDS]))).as_py()
    if 2 * (pc.sum(fits).as_py() or 0) <= cells:
        return column
    return pc.if_else(fits, pc.replace_substring(column, ",", "."), column)


def _fault(row: int | None, column: str, reason: str) -> InvalidRecordsError:
    return InvalidRecordsError([RowProblem(row, column, reason)], 1)
