"""``expunge start`` refuses what cannot be learned, before a service is started or a row sent."""

import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import narwhals
import pyarrow as pa
import pytest
from pyarrow import csv
from typer.testing import CliRunner, Result

import expunge
from app.cli.commands import starting
from app.cli.main import app
from app.cli.quoting import Quote
from app.domain.errors import InvalidInputError

HEADER = "contract,customer,signup,age,plan,churned"


def _row(number: int) -> str:
    plan, churned = ("basic", "plus")[number % 2], ("no", "yes")[number % 3 == 0]
    return f"c{number},p{number // 2},2026-01-01,{20 + number % 50},{plan},{churned}"


ROWS = [_row(number) for number in range(300)]


def _start(*words: object) -> Result:
    return CliRunner().invoke(app, ["start", *map(str, words)])


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXPUNGE_PORT", "1")  # where nothing answers

    def start(*options: object, rows: list[str] = ROWS, header: str = HEADER) -> Result:
        Path("churn.csv").write_text("\n".join([header, *rows]))
        ended = _start("churn.csv", *options)
        assert [each.name for each in tmp_path.iterdir()] == ["churn.csv"]
        return ended

    return start


def test_what_will_happen_is_said_and_nothing_is_sent_unasked(
    started: Callable[..., Result],
) -> None:
    rows = [*ROWS, "c300,p150,2026-01-01,30,plus,", "c301,p150,2026-01-01,30,basic,"]
    ended = started("--target", "churned", "--subject", "customer", rows=rows)
    assert ended.exit_code == 1
    assert "pass --yes" in ended.stderr
    for said in (
        "302 rows, named by 'contract', of persons named by 'customer'",
        "2 of 302 rows have no value of 'churned': not learned from",
        "learned   churned: no, yes; always 'no' is right for 66.7%",
        "read      age, plan",
        "not kept  signup: dates or times",
    ):
        assert said in ended.stdout
    for way in (
        r"boosted trees  exact: grown anew in about \S+ s; accuracy about 0\.\d+",
        r"linear head    exact: computed anew in about \S+ s; accuracy about 0\.\d+",
        r"a network      exact: trained anew in about \S+ s; of 8",
        r"with noise     in about \S+ s",
    ):
        assert re.search(way, ended.stdout)
    assert len(ended.stdout.splitlines()) < 20


@pytest.mark.parametrize(
    ("options", "rows", "told"),
    [
        (("--target", "churn"), ROWS, "churn.csv has no column 'churn', but contract, customer"),
        (("--target", "churned", "--subject", "who"), ROWS, "has no column 'who'"),
        (("--target", "churned", "--subject", "churned"), ROWS, "it is no id"),
        (("--target", "churned", "--name", "a b"), ROWS, "--name 'a b'"),
        (("--target", "signup"), ROWS, "'signup' cannot be learned: date"),
        (("--target", "churned"), ROWS[:3], "3 rows, too few"),
        (
            ("--target", "churned"),
            [row for row in ROWS if row.endswith("no")],
            "'churned' cannot be learned: one value in all rows",
        ),
        (
            ("--target", "churned", "--record", "contract"),
            [*ROWS, ROWS[7]],
            "row 301, column 'contract': the id of an earlier row",
        ),
        (("--target", "churned"), [*ROWS, ROWS[7]], "no column of churn.csv names each row once"),
    ],
)
def test_a_mistake_is_named_and_leaves_nothing_behind(
    started: Callable[..., Result], options: tuple[str, ...], rows: list[str], told: str
) -> None:
    ended = started(*options, rows=rows)
    assert ended.exit_code == 1
    assert told in ended.stderr


def _halves(**cells: tuple[str, str]) -> tuple[str, list[str]]:
    """Return the header and rows of which every other one has the first cells."""
    columns = {"age": ("20", "30"), "plan": ("basic", "plus"), "churned": ("no", "yes")} | cells
    rows = [",".join(each[number % 2] for each in columns.values()) for number in range(120)]
    numbered = [f"c{number},{row}" for number, row in enumerate(rows)]
    return ",".join(["contract", *columns]), numbered


LINES, LONG = ('"a\nb"', "c"), ("x" * 600, "c")
HUGE, TINY = ("-1.7e308", "1.7e308"), ("1e-310", "3e-310")


def test_what_cannot_be_read_is_left_out_and_named(started: Callable[..., Result]) -> None:
    header, rows = _halves(lines=LINES, long=LONG, huge=HUGE, tiny=TINY, wide=("-1e299", "1e299"))
    ended = started("--target", "churned", rows=rows, header=header)
    assert "pass --yes" in ended.stderr
    for said in (
        "read      age, plan, wide",
        "not kept  lines: input 'lines': values must be text of 1 to 512",
        "not kept  long: input 'long': values must be text of 1 to 512",
        "not kept  huge, tiny: numbers that no scale brings to about 1",
    ):
        assert said in ended.stdout


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ({"churned": ("", "NA")}, "'churned' cannot be learned: no value in any row"),
        ({"churned": ("", "")}, "'churned' cannot be learned: holds no values"),
        ({"churned": ("5", "5")}, "'churned' cannot be learned: one value in all rows"),
        ({"churned": LINES}, "'churned' cannot be learned: target.classes must be text"),
        ({"churned": HUGE}, "'churned' cannot be learned: numbers that no scale"),
        (
            {"age": ("", ""), "plan": LONG},
            "no column is left for the inputs: not read are age (holds no values), plan (input",
        ),
    ],
)
def test_a_table_that_cannot_be_learned_is_refused_with_the_reason(
    started: Callable[..., Result], cells: dict[str, tuple[str, str]], told: str
) -> None:
    header, rows = _halves(**cells)
    assert told in started("--target", "churned", rows=rows, header=header).stderr


def test_a_wide_table_of_many_classes_is_shown_on_one_screen(
    started: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        starting, "quoted", lambda *_: {"boosting": Quote(1, None, None, (), {}, {})}
    )
    header = ",".join(["customer,kind", *(f"x{each},d{each}" for each in range(100))])
    rows = [
        ",".join(["" if place < 7 else f"p{place}", f"k{place % 30}", *(["5,2026-01-01"] * 100)])
        for place in range(600)
    ]
    rows = [f"r{place},{row}" for place, row in enumerate(rows)]
    options = ("--target", "kind", "--subject", "customer", "--record", "row")
    shown = started(*options, rows=rows, header=f"row,{header}").stdout
    assert "of persons named by 'customer', but for 7 rows" in shown
    assert "k0, k1, k10, k11, k12, k13, k14, k15, k16, k17, k18, k19 and 18 more; always" in shown
    assert re.search(r"read      x0, x1, .* and 88 more\n", shown)
    assert re.search(r"not kept  d0, d1, .* and 88 more: dates or times\n", shown)
    assert len(shown.splitlines()) < 12


def test_a_word_among_numbers_is_named_with_an_option_that_keeps_it(
    started: Callable[..., Result],
) -> None:
    rows = [row.replace(",25,", ",unknown,") for row in ROWS]
    assert "--text 'age' keeps all" in started("--target", "churned", rows=rows).stderr
    kept = started("--target", "churned", "--text", "age", rows=rows)
    assert "not kept  age: text, each value of fewer than 10 rows" in kept.stdout


def test_the_next_commands_read_a_file_as_the_first_one_was(
    started: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = list[starting._Plan]()
    monkeypatch.setattr(starting, "_show", lambda plan, *_, **__: planned.append(plan))
    written = {"header": HEADER.replace(",", ";"), "rows": [row.replace(",", ";") for row in ROWS]}
    options = ("--decimal", ",", "--delimiter", ";", "--subject", "customer")
    started("--target", "churned", *options, **written)
    started("--target", "churned")
    told, plain = ("\n".join(starting._next_commands(each, "churn-trees")) for each in planned)
    assert "forget churn --subject ID" in told
    assert "--input NEXT.csv --delimiter ';' --decimal , --out" in told
    assert "push churn NEXT.csv --delimiter ';' --decimal , && " in told
    assert "forget churn --record ID" in plain
    assert "push churn NEXT.csv && " in plain


def test_an_encoding_must_be_told(started: Callable[..., Result], tmp_path: Path) -> None:
    Path("latin.csv").write_bytes("\n".join([HEADER, *ROWS]).replace("basic", "é").encode("cp1252"))
    assert "pass --encoding" in _start("latin.csv", "--target", "churned").stderr
    told = _start("latin.csv", "--target", "signup", "--encoding", "cp1252").stderr
    assert "'signup' cannot be learned: date" in told


def test_of_several_columns_that_could_name_rows_one_is_to_be_said(
    started: Callable[..., Result],
) -> None:
    rows = [f"n{number},{row}" for number, row in enumerate(ROWS)]
    ended = started("--target", "churned", rows=rows, header=f"invoice,{HEADER}")
    assert "--record: ['invoice', 'contract']" in ended.stderr


class _Interchanged:
    """A table of a library that has the dataframe interchange protocol, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self.__dataframe__ = table.drop_columns("signup").__dataframe__  # it has no dates


def test_rows_of_a_library_are_checked_and_shown_as_a_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXPUNGE_PORT", "1")
    table = csv.read_csv(BytesIO("\n".join([HEADER, *ROWS]).encode()))
    for rows in (table, narwhals.from_native(table), _Interchanged(table)):
        with pytest.raises(InvalidInputError, match="has no column 'churn'"):
            expunge.start(rows, target="churn", yes=True)
    with pytest.raises(InvalidInputError, match="look at this, then pass --yes or yes=True"):
        expunge.start(_Interchanged(table), target="churned", subject="contract")
    said = capsys.readouterr().out
    assert "300 rows, named by 'contract', of one person each" in said
    assert not any(tmp_path.iterdir())
