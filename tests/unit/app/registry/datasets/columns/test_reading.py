"""Limits of what is read, and what stays as it is."""

import gzip
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.domain.errors import TableError
from app.domain.schema import TableSchema
from app.registry.datasets.columns.column_types import proposed_schema
from app.registry.datasets.columns.proposal import Choices, proposed
from app.registry.datasets.columns.reading import read_source
from app.registry.datasets.columns.sources import check_rows, typed_parts
from tests.support.layouts import TEXTS


@pytest.mark.parametrize("order", ["C", "F"])
def test_images_are_lists_of_one_length(tmp_path: Path, order: str) -> None:
    images = np.asarray(np.arange(24, dtype=np.uint8).reshape(2, 3, 4), order=order)
    file = tmp_path / "images.npz"
    np.savez(file, record_id=[10, 11], label=[1, 0], images=images, subject_id=["x", "y"])

    source = read_source(file)
    schema = proposed_schema(source)
    (part,) = typed_parts(source, schema)

    assert schema.to_json()["columns"] == {"images": "list<uint8, 12>?", "label": "int64?"}
    assert part.records["record_id"].to_pylist() == ["10", "11"]
    assert part.records["images"].to_pylist() == images.reshape(2, 12).tolist()
    task = proposed(schema, Choices(target="label", shapes={"images": (3, 4)}), part.records).task
    assert (task.schema().shape, task.schema().dtype) == ((3, 4), "uint8")


def test_rows_of_later_parts_have_their_numbers_in_the_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("app.registry.datasets.columns.sources._PART_ROWS", 2)
    (tmp_path / "a.csv").write_text("record_id,label,x\n1,0,1\n2,1,2\n3,0,3\n2,1,4\n5,0,word\n")
    schema = TableSchema.of({"x": "int8"}, record_id="record_id")

    with pytest.raises(TableError) as caught:
        check_rows(read_source(tmp_path / "a.csv"), schema)

    assert [line.partition(", column")[0] for line in caught.value.lines] == [
        "a.csv: row 5",
        "a.csv: row 4",
    ]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (b"y,1,2", "row 150, column '3': the row has 3 cells, the header 2"),
        (b"\xff,1", "row 150, column 'record_id': bytes that are not utf-8"),
        (b'"y,1', "row 150, column 'record_id': a quotation mark that is not closed"),
        (b"y,word", "row 150, column 'x': text, where a number is expected"),
        (b"r7,1", "row 150, column 'record_id': the id of an earlier row"),
        (b"y" * 500 + b",1", None),
        (b'"y\ny",1', None),
    ],
)
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_a_long_csv_is_read_in_blocks_whose_rows_count_through(
    tmp_path: Path, monkeypatch, row: bytes, fault: str | None, ends: bytes
) -> None:
    monkeypatch.setattr("app.registry.datasets.columns.reading._CHUNK_BYTES", 64)
    monkeypatch.setattr("app.registry.datasets.columns.delimited._BLOCKS", (100, 1000))
    rows = [b"record_id,x", *(b"r%d,%d" % (number, number) for number in range(1, 301))]
    rows[150] = row
    (tmp_path / "a.csv").write_bytes(ends.join(rows))

    source = read_source(tmp_path / "a.csv")
    if fault is not None:
        with pytest.raises(TableError, match=f"^a.csv: {fault}"):
            proposed_schema(source)
        return
    schema = proposed_schema(source)
    (part,) = typed_parts(source, schema)
    assert part.records["x"].to_pylist() == [1 if n == 150 else n for n in range(1, 301)]


def test_what_a_column_is_follows_from_all_of_its_parts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("app.registry.datasets.columns.sources._PART_ROWS", 2)
    cells = {
        "int64?": ["1", "2", "3", "0", "-4.0"],
        "float64?": ["1", "2", "3", "4", "5.5"],
        "int64?'": ["1", "2", "3", "4", "NA"],
        "string?": ["1", "2", "3", "4", "007"],
        "bool?": ["true", "false", "true", "true", "false"],
        "string?'": ["", "", "", "", "a"],
    }
    rows = zip(["a", "b", "c", "d", "e"], *cells.values(), strict=True)
    lines = [",".join(["record_id", *cells]), *map(",".join, rows)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    tens = pa.array([Decimal(each) for each in ("1.0", "2.0", "3.0", "4.0", "5.5")])
    columns = {"record_id": list("abcde"), "float64?": tens, "int64?": tens.take([0, 1, 2, 3, 0])}
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")

    for name in ("a.csv", "b.parquet"):
        found = proposed_schema(read_source(tmp_path / name)).to_json()["columns"]
        assert all(each.strip("'") == kind for each, kind in found.items()), found


def test_an_array_is_a_column_or_refused_by_name(tmp_path: Path) -> None:
    def saved(**arrays: object) -> Path:
        np.savez(tmp_path / "a.npz", **arrays)
        return tmp_path / "a.npz"

    names = read_source(saved(name=np.array([b"ab", b"c"]))).whole()["name"]
    assert names.to_pylist() == ["ab", "c"]  # text of one byte a letter, as older tools save it
    with pytest.raises(TableError, match="'whole': a single value in place of one for each row"):
        read_source(saved(whole=np.array(5)))
    with pytest.raises(TableError, match="'kept': Python objects"):
        read_source(saved(kept=np.array([{}], dtype=object)))
    with pytest.raises(TableError, match="'short': 1 rows"):
        read_source(saved(long=np.zeros(2), short=np.zeros(1)))


def test_what_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.registry.datasets.columns.reading.MAX_UNPACKED_BYTES", 100_000)
    columns = {"record_id": ["a"], "label": [1], "features": np.zeros((1, 100_000))}
    np.savez_compressed(tmp_path / "data.npz", **columns)
    columns["features"] = pa.array([np.arange(100_000)])
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    (tmp_path / "data.csv.gz").write_bytes(gzip.compress(bytes(1_000_000)))

    for file in tmp_path.iterdir():
        with pytest.raises(TableError, match=r"unpacks to \d+ bytes or more; the limit is 100000"):
            read_source(file)


@pytest.mark.parametrize(
    "said",
    [
        "{",
        "[1]",
        "5",
        b"\xff\xfe",
        "[" * 100_000,
        '{"index_columns": 5}',
        '{"index_columns": {"a": "x"}}',
        '{"index_columns": ["gone", {"kind": "range"}, ["x"], "\\ud800"]}',
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_what_other_tools_say_of_a_file_is_no_index(
    tmp_path: Path, said: str | bytes, suffix: str
) -> None:
    field = pa.field("x", pa.int64(), metadata={b"\xfe": b"\xff"})
    table = pa.table({"x": [1]}, schema=pa.schema([field], {"pandas": said, b"\xff": b"\xff"}))
    file = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table)
    source = read_source(file)
    assert (source.whole()["x"].to_pylist(), source.files[0].index) == ([1], None)


def test_an_index_is_known_by_what_pandas_says_of_it(tmp_path: Path) -> None:
    said = {"pandas": '{"index_columns": ["x"]}'}
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata(said), tmp_path / "a.parquet")
    assert read_source(tmp_path / "a.parquet").files[0].index == "x"


def test_a_folder_may_hold_one_column_in_many_layouts(tmp_path: Path) -> None:
    for number, layout in enumerate(TEXTS.values()):
        table = pa.table({"x": layout(["a", None])})
        with pa.ipc.new_file(str(tmp_path / f"{number}.arrow"), table.schema) as writer:
            writer.write_table(table)
    assert read_source(tmp_path).whole()["x"].to_pylist() == ["a", None] * len(TEXTS)
