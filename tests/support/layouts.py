"""The same cells in the layouts of Arrow that pandas, polars and DuckDB write, and encrypted."""

import base64
import io
from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

Cells = Sequence[str | None]


def _views(cells: Cells) -> pa.Array:
    return pa.array(cells).cast(pa.string_view())


def _coded(cells: Cells) -> pa.Array:
    present = sorted({cell for cell in cells if cell is not None})
    codes = [None if cell is None else present.index(cell) for cell in cells]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.uint32()), _views(present))


def _runs(values: pa.Array) -> pa.Array:
    ends = pa.array(range(1, len(values) + 1), pa.int16())
    return pa.RunEndEncodedArray.from_arrays(ends, values)


TEXTS: dict[str, Callable[[Cells], pa.Array]] = {
    "large": lambda cells: pa.array(cells, pa.large_string()),
    "view": _views,
    "dictionary": lambda cells: pa.array(cells).dictionary_encode(),
    "dictionary of views": _coded,
    "runs": lambda cells: pc.run_end_encode(pa.array(cells)),
    "runs of views": lambda cells: _runs(_views(cells)),
    "runs of codes": lambda cells: _runs(pa.array(cells).dictionary_encode()),
    "opaque": lambda cells: pa.ExtensionArray.from_storage(
        pa.opaque(pa.string_view(), "text", "a database"), _views(cells)
    ),
}
IN_PARQUET = ("large", "view", "dictionary")
"""Those that pyarrow writes to Parquet."""

WHOLE = {
    "small decimal": pa.decimal32(7, 2),
    "decimal": pa.decimal128(18, 3),
    "wide decimal": pa.decimal256(60, 4),
    "decimal of tens": pa.decimal128(9, -1),
}
"""Types of whole numbers that are multiples of ten."""

LISTS = {
    "large": pa.large_list,
    "view": pa.list_view,
    "large view": pa.large_list_view,
    "of two": lambda item: pa.list_(item, 2),
}


def decimals(numbers: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Return numbers, or their texts, as decimals."""
    return pa.array([None if n is None else Decimal(str(n)) for n in numbers], kind)


def parquet(table: pa.Table) -> bytes:
    """Return a file's content."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


class _Keys(pe.KmsClient):
    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)


def encrypted(table: pa.Table, columns: Sequence[str], *, footer: bool) -> bytes:
    """Return a Parquet file of which some columns are encrypted, and its footer, if asked for."""
    wanted = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": list(columns)}, plaintext_footer=not footer
    )
    keys = pe.CryptoFactory(lambda _: _Keys()).file_encryption_properties(
        pe.KmsConnectionConfig(), wanted
    )
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)
    return sink.getvalue()
