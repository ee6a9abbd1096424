"""What commands print: tables for people, one JSON document for programs."""

import json

import pytest
import typer
from typer.testing import CliRunner

from app.cli import output
from app.cli.lazy import WITHOUT_FACTS
from app.cli.main import app as cli
from app.cli.output import conclude, say, show, with_json
from tests.unit.app.cli.test_help import LEAVES

ROWS = [
    {"id": "a\x1b[31m", "state": None, "inner": {"n": 0.1234567, "done": True}, "plan": {"x": 1}},
    {"id": "b" * 120, "state": "東京", "inner": {"n": 3, "done": False}, "plan": {"x": 2}},
]


def _app(answer: object, columns: tuple[str, ...] = ()) -> typer.Typer:
    def command() -> None:
        """Print."""
        say("a line")
        show(answer, columns)
        conclude({"line": 1}) if answer is None else None

    app = typer.Typer()
    app.command()(with_json(command))
    return app


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_is_terminal", lambda: True)


def test_a_list_is_a_table_whose_cells_are_whole_and_harmless(terminal: None) -> None:
    shown = CliRunner().invoke(_app(ROWS, ("id", "inner.n", "inner.done", "state")), []).stdout
    _, heading, first, second = shown.splitlines()
    assert heading.split() == ["id", "inner", "n", "inner", "done", "state"]
    assert first.split() == [r"a\x1b[31m", "0.123457", "yes", "–"]
    assert second.split() == ["b" * 120, "3", "no", "東京"]
    assert first.index("0.1") == second.index("3") == heading.index("inner n")


def test_an_object_is_a_line_a_member_and_its_lists_are_tables(terminal: None) -> None:
    answer = {"id": "x", "tags": ["a", "b"], "created_at": "2026-01-02T03:04:05.678Z", "rows": ROWS}
    lines = CliRunner().invoke(_app(answer), []).stdout.splitlines()
    assert "created_at  2026-01-02T03:04:05Z" in lines
    assert "tags        a, b" in lines
    assert lines[lines.index("rows:") + 1].split() == ["id", "state", "inner", "n", "inner", "done"]
    assert "plan" not in "".join(lines)


def test_a_table_has_columns_that_are_worked_out(
    terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    output.show([{"n": 2}, {"n": 3}], ("n", "twice"), derived={"twice": lambda row: 2 * row["n"]})
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["n", "twice"]
    assert [line.split() for line in lines] == [["2", "4"], ["3", "6"]]


def test_an_object_that_some_rows_lack_takes_no_column_of_its_own(terminal: None) -> None:
    rows = [{"id": "a", "run": None}, {"id": "b", "run": {"mechanism": "x"}}]
    _, heading, first, second = CliRunner().invoke(_app(rows), []).stdout.splitlines()
    assert heading.split() == ["id", "run", "mechanism"]
    assert (first.split(), second.split()) == (["a", "–"], ["b", "x"])


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_off_a_terminal_an_answer_is_json(arguments: list[str]) -> None:
    shown = CliRunner().invoke(_app(ROWS), arguments).stdout
    assert json.loads(shown.removeprefix("a line\n")) == ROWS


def test_with_json_nothing_else_is_printed_on_a_terminal_too(terminal: None) -> None:
    assert json.loads(CliRunner().invoke(_app(ROWS), ["--json"]).stdout) == ROWS
    assert json.loads(CliRunner().invoke(_app([]), ["--json"]).stdout) == []


def test_the_wish_for_json_ends_with_its_command() -> None:
    CliRunner().invoke(_app(ROWS), ["--json"])
    assert CliRunner().invoke(_app(ROWS), []).stdout.startswith("a line\n")


def test_every_command_that_prints_facts_has_it() -> None:
    having = {
        path for path, leaf in LEAVES.items() if "--json" in str([p.opts for p in leaf.params])
    }
    assert having == set(LEAVES) - WITHOUT_FACTS
    assert set(LEAVES) >= WITHOUT_FACTS


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "--epsilon", "1"],
        ["account", "--mechanism", "gaussian_mu", "--param", "epsilon=1", "--param", "delta=1e-5"],
    ],
)
def test_words_without_it_and_one_document_with_it(command: list[str]) -> None:
    words = CliRunner().invoke(cli, command).stdout
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(words)
    assert isinstance(json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout), dict)


def test_the_version() -> None:
    shown = CliRunner().invoke(cli, ["--version"])
    assert shown.exit_code == 0
    assert shown.stdout.startswith("expunge ")
    assert shown.stdout.count("\n") == 1
