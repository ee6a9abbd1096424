"""Tables as people have them: each gives the right records, or one line that says what is wrong."""

# ruff: noqa: E501 - one case a line

import gzip
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.domain.errors import ExpungeError
from app.domain.tasks.built_in import ClassificationSpec, RegressionSpec
from app.registry.datasets.columns.column_types import proposed_schema
from app.registry.datasets.columns.delimited import Dialect
from app.registry.datasets.columns.encoding import NO_CLASS, features_of, labels_of, numbers_in
from app.registry.datasets.columns.proposal import Choices, Listed, proposed
from app.registry.datasets.columns.reading import read_source
from app.registry.datasets.columns.sources import typed_parts

PLANS = Listed(values=("a", "b"), other=False)
OPEN = Listed(values=("a", "b"), other=True)
CHOICES: dict[str, Any] = {
    "target": "out",
    "record_id": "id",
    "classes": ("no", "yes"),
    "categories": {"plan": PLANS},
}
HEADER = "id,age,plan,out\n"
CLEAN = HEADER + "x1,30,a,yes\nx2,40.5,b,no\nx3,50,a,no\n"
IDS = ["x1", "x2", "x3"]
LABELS = [1, 0, 0]
FEATURES = [[30, 1, 0], [40.5, 0, 1], [50, 1, 0]]
SECRET = "Przybylski"


class Records(NamedTuple):
    ids: list = IDS
    labels: list = LABELS
    features: list = FEATURES
    subjects: list | None = None


SAME = Records()


class Case(NamedTuple):
    name: str
    file: str | bytes | Callable[[Path], Path]
    outcome: Records | str
    choices: Mapping[str, Any] = MappingProxyType({})
    dialect: Dialect = Dialect()
    suffix: str = ".csv"


def _csv(row: str, *, header: str = HEADER) -> str:
    """Return a clean table whose second row is another."""
    rows = CLEAN.splitlines()
    return "\n".join([header.strip(), rows[1], row, rows[3]]) + "\n"


def _table(**columns: Any) -> pa.Table:
    plain = {"id": IDS, "age": [30, 40.5, 50], "plan": ["a", "b", "a"], "out": ["yes", "no", "no"]}
    return pa.table(
        {name: column for name, column in (plain | columns).items() if column is not None}
    )


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _arrow(*, stream: bool) -> bytes:
    sink, table = pa.BufferOutputStream(), _table()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _npz(**columns: Any) -> bytes:
    sink = io.BytesIO()
    plain = {
        "id": np.array(IDS),
        "age": np.array([30, 40.5, 50]),
        "out": np.array(["yes", "no", "no"]),
    }
    np.savez(sink, **(plain | {"plan": np.array(["a", "b", "a"])} | columns))
    return sink.getvalue()


def _pandas(index: str) -> bytes:
    """Return Parquet as pandas writes it with an index."""
    meta = {"index_columns": [index], "columns": [], "column_indexes": []}
    table = _table(id=None).append_column(index, pa.array(IDS))
    return _parquet(table.replace_schema_metadata({b"pandas": json.dumps(meta).encode()}))


def _folder(*tables: pa.Table, names: tuple[str, ...] = ()) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        for i, table in enumerate(tables):
            file = path / "export" / (names[i] if names else f"part-{i}.parquet")
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, file)
        (path / "export" / "_SUCCESS").touch()
        return path / "export"

    return write


def _zip(member: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr(member, "x")
    return sink.getvalue()


ACCENTED = CLEAN.replace("x2", "Zo\u00eb")
WIDE = _table(age=pa.array([1.0, 1e39, 2.0]))
OUT = "t.csv: row 2, column 'age': "

CASES = [
    # Forms of one table
    Case("comma", CLEAN, SAME),
    Case("semicolon", CLEAN.replace(",", ";"), SAME),
    Case("tab", CLEAN.replace(",", "\t"), SAME, suffix=".tsv"),
    Case("pipe", CLEAN.replace(",", "|"), SAME, suffix=".txt"),
    Case("announced delimiter", "sep=;\n" + CLEAN.replace(",", ";"), SAME),
    Case("given delimiter", CLEAN.replace(",", "^"), SAME, dialect=Dialect(delimiter="^")),
    Case("gzip", gzip.compress(CLEAN.encode()), SAME, suffix=".csv.gz"),
    Case("byte order mark", b"\xef\xbb\xbf" + CLEAN.encode(), SAME),
    Case("UTF-16", CLEAN.encode("utf-16"), SAME),
    Case("cp1252", ACCENTED.encode("cp1252"), Records(ids=["x1", "Zo\u00eb", "x3"]),
         dialect=Dialect(encoding="cp1252")),
    Case("Windows line ends", CLEAN.replace("\n", "\r\n"), SAME),
    Case("old Mac line ends", CLEAN.replace("\n", "\r"), SAME),
    Case("no final line end", CLEAN.rstrip(), SAME),
    Case("blank lines", "\n" + CLEAN.replace("x2", "\n\nx2") + "\n\n", SAME),
    Case("delimiter at line ends", CLEAN.replace("\n", ",\n"), SAME),
    Case("empty columns of a spreadsheet", CLEAN.replace("\n", ",,,\n"), SAME),
    Case("a column without a name after empty ones", CLEAN.replace("\n", ",,7\n").replace("out,,7", "out,,"), "column '6': has no name"),
    Case("quotes", _csv('"x2",40.5,"b",no'), SAME),
    Case("line break in a cell", _csv('"x\n2",40.5,b,no'), Records(ids=["x1", "x\n2", "x3"])),
    Case("padded cells", _csv(" x2 , 40.5 ,b , no"), SAME),
    Case("padded header", _csv("x2,40.5,b,no", header=" id , age,plan ,out"), SAME),
    Case("exponent", _csv("x2,+4.05e1,b,no"), SAME),
    Case("decimal comma", CLEAN.replace(",", ";").replace(".", ","), SAME, dialect=Dialect(decimal=",")),
    Case("Parquet", _parquet(_table()), SAME, suffix=".parquet"),
    Case("Arrow file", _arrow(stream=False), SAME, suffix=".arrow"),
    Case("Arrow stream", _arrow(stream=True), SAME, suffix=".arrow"),
    Case("npz", _npz(), SAME, suffix=".npz"),
    Case("wrong suffix", _parquet(_table()), SAME),
    Case("folder", _folder(_table().slice(0, 2), _table().slice(2)), SAME),
    Case("folder with columns in another order",
         _folder(_table().slice(0, 2), _table().slice(2).select(["out", "plan", "age", "id"])), SAME),
    Case("partitioned folder",
         _folder(_table(plan=None).slice(0, 1), _table(plan=None).slice(1, 1),
                 names=("plan=a/0.parquet", "plan=b/0.parquet")),
         Records(IDS[:2], LABELS[:2], FEATURES[:2])),
    Case("categorical type", _parquet(_table(plan=pa.array(["a", "b", "a"]).dictionary_encode())), SAME),
    Case("decimal type", _parquet(_table(age=pa.array([Decimal("30.0"), Decimal("40.5"), Decimal("50.0")]))), SAME),
    # Ids and persons
    Case("leading zeros", _csv("007,40.5,b,no"), Records(ids=["x1", "007", "x3"])),
    Case("an id called NA", _csv("NA,40.5,b,no"), Records(ids=["x1", "NA", "x3"])),
    Case("two spellings of one name", ACCENTED.replace("x3", "Zoe\u0308"), "t.csv: row 3, column 'id': the id of an earlier row"),
    Case("decomposed name", ACCENTED.replace("Zo\u00eb", "Zoe\u0308"), Records(ids=["x1", "Zo\u00eb", "x3"])),
    Case("ids as floats", _parquet(_table(id=[1.0, 2.0, 3.0])), Records(ids=["1", "2", "3"])),
    Case("missing id", _csv(",40.5,b,no"), "t.csv: row 2, column 'id': is missing"),
    Case("long id", _csv("x" * 513 + ",40.5,b,no"), "t.csv: row 2, column 'id': must have at most 512"),
    Case("persons", CLEAN.replace("id", "person,id").replace("\nx", "\n,x", 1).replace("\nx", "\nP,x"),
         Records(subjects=[None, "P", "P"]), {"subject_id": "person"}),
    Case("ids that are dates", _parquet(_table(id=[date(2026, 1, i) for i in (1, 2, 3)])), "column 'id': a date, where text"),
    Case("pandas' index in CSV", "," + CLEAN.removeprefix("id,"), SAME, {"record_id": None}),
    Case("pandas' index, saved twice", "Unnamed: 0," + CLEAN.removeprefix("id,"), SAME, {"record_id": None}),
    Case("pandas' index in Parquet", _pandas("__index_level_0__"), SAME, {"record_id": None}),
    Case("pandas' named index", _pandas("customer"), SAME, {"record_id": None}),
    # Labels
    Case("truth values", CLEAN.replace("yes", "TRUE").replace("no", "false"), SAME, {"classes": ()}),
    Case("truth values in Parquet", _parquet(_table(out=[True, False, False])), SAME, {"classes": ()}),
    Case("whole numbers", CLEAN.replace("yes", "1").replace("no", "0"), SAME, {"classes": ()}),
    Case("whole numbers with gaps", CLEAN.replace("yes", "70").replace("no", "-3"), SAME, {"classes": ("-3", "70")}),
    Case("rare whole numbers with gaps", CLEAN.replace("yes", "70").replace("no", "-3"), "column 'out': values of fewer than 10 rows; name all classes with --classes", {"classes": ()}),
    Case("whole numbers as floats", CLEAN.replace("yes", "1.0").replace("no", "0.0"), SAME, {"classes": ()}),
    Case("a number of classes", CLEAN.replace("yes", "1").replace("no", "0"), SAME, {"classes": (), "class_count": 5}),
    Case("fractions as labels", CLEAN.replace("yes", "1.5").replace("no", "0.5"), Records(labels=[1.5, 0.5, 0.5]), {"classes": ()}),
    Case("rare names of classes", CLEAN, "column 'out': values of fewer than 10 rows", {"classes": ()}),
    Case("one class", CLEAN.replace("yes", "0").replace("no", "0"), "column 'out': one value in all rows; name", {"classes": ()}),
    Case("missing label", _csv("x2,40.5,b,"), Records(labels=[1, NO_CLASS, 0])),
    Case("another label", _csv(f"x2,40.5,b,{SECRET}"), "t.csv: row 2, column 'out': text that is not the name of a class"),
    Case("label out of range", CLEAN.replace("yes", "1").replace("no", "2"), "row 2, column 'out': a whole number that is not the name of a class (and in 1 more)", {"classes": (), "class_count": 2}),
    Case("dates as labels", _parquet(_table(out=[date(2026, 1, 1)] * 3)), "column 'out': date?, which cannot be a target", {"classes": ()}),
    # Numbers
    Case("missing number", _csv("x2,,b,no"), Records(features=[[30, 1, 0], [0, 0, 1], [50, 1, 0]])),
    Case("a question mark among numbers", _csv("x2,?,b,no"), Records(features=[[30, 1, 0], [0, 0, 1], [50, 1, 0]])),
    Case("missing number with a constant", _csv("x2,NaN,b,no"), Records(features=[[30, 1, 0], [44, 0, 1], [50, 1, 0]]), {"missing": {"age": "44"}}),
    Case("null in Parquet", _parquet(_table(age=[30, None, 50])), Records(features=[[30, 1, 0], [0, 0, 1], [50, 1, 0]])),
    Case("public bounds", CLEAN, Records(features=[[0, 1, 0], [0.75, 0, 1], [1, 1, 0]]), {"bounds": {"age": (33, 43)}}),
    Case("a word among numbers", _csv(f"x2,{SECRET},b,no"), OUT + "text, where a number is expected"),
    Case("a word among numbers, all kept as text", _csv(f"x2,{SECRET},b,no"), Records(features=[[1, 0], [0, 1], [1, 0]]), {"text": ("age",), "drop": ("age",)}),
    Case("a telephone number", CLEAN.replace("30", "+49 30 12345"), "column 'age': text, each value of fewer than 10 rows"),
    Case("thousands separator", _csv('x2,"1,234",b,no'), OUT + "text, where a number is expected"),
    Case("thousands separators in all", CLEAN.replace(",", ";").replace("30", "3,500").replace("40.5", "1,234,500"), "column 'age': a comma before three digits each: write thousands without it"),
    Case("a decimal comma in all", CLEAN.replace(",", ";").replace("30", "3,5").replace("40.5", "4,5"), "column 'age': numbers with a decimal comma"),
    Case("infinite", _parquet(_table(age=[1.0, float("inf"), 2.0])), OUT + "a number that is not float64 without loss"),
    Case("too large", _parquet(WIDE), OUT + "a number too large for float32"),
    Case("dates", CLEAN.replace("30", "2026-01-30").replace("40.5", "2026-02-01").replace("50", "2026-02-02"), "t.csv: column 'age': dates or times"),
    Case("dates in Parquet", _parquet(_table(age=[date(2026, 1, 1)] * 3)), "t.csv: column 'age': dates or times"),
    Case("dropped dates", _parquet(_table(when=[date(2026, 1, 1)] * 3)), SAME, {"drop": ("when",)}),
    Case("chosen columns", CLEAN.replace("id", "id,note").replace("\nx1", "\nx1,?").replace("\nx2", "\nx2,?").replace("\nx3", "\nx3,?"), SAME, {"features": ("age", "plan")}),
    Case("columns that are not kept", _parquet(_table(when=[{"a": 1}] * 3)), SAME, {"unkept": ("when",)}),
    Case("an empty column", _parquet(_table(none=pa.nulls(3))), "column 'none': holds no values"),
    # Categories
    Case("another value", _csv(f"x2,40.5,{SECRET},no"), "t.csv: row 2, column 'plan': text that is not a listed value, and the task has no rule for it: give its input 'other'"),
    Case("another value, counted as other", _csv("x2,40.5,z,no"), Records(features=[[30, 1, 0, 0], [40.5, 0, 0, 1], [50, 1, 0, 0]]), {"categories": {"plan": OPEN}}),
    Case("missing value", _csv("x2,40.5,,no"), "t.csv: row 2, column 'plan': is missing"),
    Case("missing value with a constant", _csv("x2,40.5,,no"), SAME, {"missing": {"plan": "b"}}),
    Case("free text", CLEAN, "column 'plan': text, each value of fewer than 10 rows", {"categories": {}}),
    Case("structs", _parquet(_table(plan=[{"a": 1}] * 3)), "column 'plan': a group of fields", {"categories": {}}),
    Case("bytes", _parquet(_table(plan=[b"a", b"b", b"a"])), "column 'plan': bytes, where text"),
    # Arrays
    Case("tensors", _npz(plan=np.arange(12).reshape(3, 2, 2)), Records(features=[[30, 0, 1, 2, 3], [40.5, 4, 5, 6, 7], [50, 8, 9, 10, 11]]), {"categories": {}}),
    Case("lists of different lengths", _parquet(_table(plan=[[1], [1, 2], [1]])), "t.csv: row 2, column 'plan': must have 1 elements", {"categories": {}}),
    Case("null in a list", _parquet(_table(plan=[[1], [None], [1]])), "t.csv: row 2, column 'plan': a list in which an item is missing", {"categories": {}}),
    Case("lists of text", _parquet(_table(plan=[["a"]] * 3)), "column 'plan': list<string>?, where a list of numbers is expected", {"categories": {}}),
    Case("arrays of different lengths", _npz(age=np.arange(2)), "column 'age': 2 rows, unlike"),
    Case("Python objects", _npz(plan=np.array([{}, {}, {}], dtype=object)), "column 'plan': Python objects"),
    # Broken files
    Case("not UTF-8", ACCENTED.encode("cp1252"), "t.csv: row 2, column 'id': bytes that are not utf-8; pass --encoding"),
    Case("UTF-16 without a mark", CLEAN.encode("utf-16-le"), "t.csv: column "),
    Case("too few cells", _csv("x2,40.5"), "t.csv: row 2, column 'plan': the row has 2 cells, the header 4"),
    Case("too many cells", _csv("x2,40.5,b,no,no"), "t.csv: row 2, column '5': the row has 5 cells, the header 4"),
    Case("open quote", _csv('"x2,40.5,b,no'), "t.csv: row 2, column 'id': a quotation mark"),
    Case("no header", CLEAN.removeprefix(HEADER).replace("x", "").replace("a", "1").replace("b", "2").replace("yes", "1").replace("no", "0"), "a number in place of a name"),
    Case("a name twice", _csv("x2,40.5,b,no", header="id,age,age,out"), "t.csv: column 'age': occurs twice"),
    Case("a column without a name", _csv("x2,40.5,b,no", header="id,,plan,out"), "t.csv: column 2: has no name"),
    Case("a name that is no text", _csv("x2,40.5,b,no", header="id,a\age,plan,out"), "t.csv: column 2: its name is not text"),
    Case("no such label", CLEAN, "t.csv: column 'gone': the dataset has no such column", {"target": "gone"}),
    Case("misspelt column", CLEAN, "t.csv: column 'agee': the dataset has no such column", {"drop": ("agee",)}),
    Case("no ids", CLEAN, "name the column of the records' ids with --record-id", {"record_id": None}),
    Case("empty", "", "t.csv: the file is empty"),
    Case("header only", HEADER, "t.csv: the table has no rows"),
    Case("cut off", _parquet(_table())[:-20], "t.csv: cannot be read: ArrowInvalid"),
    Case("cut off gzip", gzip.compress(CLEAN.encode())[:-12], "t.csv: cannot be read: EOFError"),
    Case("Excel", _zip("xl/workbook.xml"), "t.csv: this is an Excel workbook"),
    Case("zip", _zip("churn.csv"), "t.csv: this is a zip archive"),
    Case("pickle", pickle.dumps({"a": [1]}), "t.csv: this is a pickle, which is never loaded"),
    Case("JSON", '[{"id": 1}]', "t.csv: this is JSON"),
    Case("folder with another column", _folder(_table(), _table(extra=[1, 2, 3])), "part-1.parquet: column 'extra': not in all of the files"),
    Case("folder with another type", _folder(_table(age=[1, 2, 3]), _table(age=["1", "2", "3"])), "another type in each file"),
    Case("a fault in a folder's second file", _folder(_table(), _table(id=["y1", "y2", "y3"], out=["yes", "no", "!"])), "export/part-1.parquet: row 3, column 'out': text that is not the name of a class"),
    Case("the same rows in two files", _folder(_table(), _table()), "export/part-1.parquet: row 1, column 'id': the id of an earlier row (and in 2 more)"),
]  # fmt: skip


def _read(case: Case, path: Path) -> Records:
    """Push a table and encode it for a model, as far as that goes."""
    if callable(case.file):
        file = case.file(path)
    else:
        file = path / ("t" + case.suffix)
        content = case.file.encode() if isinstance(case.file, str) else case.file
        file.write_bytes(content)
    source = read_source(file, dialect=case.dialect)
    said = CHOICES | dict(case.choices)
    ids = {name: said.pop(name, None) for name in ("record_id", "subject_id")}
    schema = proposed_schema(source, drop=said.pop("unkept", ()), text=said.pop("text", ()), **ids)
    (part,) = typed_parts(source, schema)
    rows = part.records
    with source.places():
        task = proposed(schema, Choices(**said), rows).task
        features = features_of(rows, task.inputs).tolist()
        if isinstance(task, RegressionSpec):
            labels = numbers_in(rows, task.targets)[:, 0].tolist()
        else:
            assert isinstance(task, ClassificationSpec)
            labels = labels_of(rows, task.target).tolist()
    subjects = None if schema.subject_id is None else rows[schema.subject_id].to_pylist()
    return Records(rows[schema.record_id].to_pylist(), labels, features, subjects)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_table_gives_the_right_records_or_one_line(case: Case, tmp_path: Path) -> None:
    if isinstance(case.outcome, str):
        with pytest.raises(ExpungeError) as caught:
            _read(case, tmp_path)
        assert case.outcome in str(caught.value)
        assert "\n" not in str(caught.value)
        assert SECRET not in str(caught.value)
        return

    records = _read(case, tmp_path)

    expected = np.float32(case.outcome.features).tolist()
    assert records == case.outcome._replace(features=expected)


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 40
    assert len({case.name for case in CASES}) == len(CASES)
