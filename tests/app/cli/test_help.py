"""Every command, argument and option explains itself, and the examples are commands."""

import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
import typer
from click.testing import CliRunner

from app.cli.examples import EXAMPLES
from app.cli.main import app

ROOT = typer.main.get_command(app)


def commands(command=ROOT, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, below in getattr(command, "commands", {}).items():
        if below.hidden:  # an old name
            continue
        here = f"{path} {name}".strip()
        yield here, below
        yield from commands(below, here)


ALL = dict(commands())
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}


def test_a_command_says_what_it_does() -> None:
    for path, command in ALL.items():
        said = command.help or ""
        assert len(said) > 10, path
        assert said.split("\n\n")[0].rstrip().endswith("."), path


def test_every_argument_and_option_is_explained() -> None:
    for path, command in LEAVES.items():
        silent = [parameter.name for parameter in command.params if not parameter.help]
        assert (path, silent) == (path, [])


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_shows_an_example(path: str) -> None:
    shown = CliRunner().invoke(ROOT, [*path.split(), "--help"], env={"COLUMNS": "80"}).output
    for example in EXAMPLES[path]:
        assert f"expunge {path}" in example
        assert example in " ".join(shown.split())


@pytest.mark.parametrize("path", LEAVES)
def test_examples_are_commands(path: str) -> None:
    command = LEAVES[path]
    for example in EXAMPLES[path]:
        words = shlex.split(example, comments=True)
        words = words[words.index("expunge") + 1 + len(path.split()) :]
        for ending in (">", "|"):
            if ending in words:
                words = words[: words.index(ending)]
        context = click.Context(command, info_name=path)
        command.make_parser(context).parse_args(args=words)


def test_examples_are_of_commands_that_there_are() -> None:
    assert set(EXAMPLES) == set(LEAVES)


def test_the_first_page_groups_the_commands_and_tells_the_exit_codes() -> None:
    shown = CliRunner().invoke(ROOT, ["--help"], env={"COLUMNS": "100"}).output
    panels = {command.rich_help_panel for path, command in ALL.items() if " " not in path}
    assert None not in panels
    for panel in panels:
        assert f"─ {panel} ─" in shown
    for code in ("0 ", "1 ", "2 "):
        assert f"\n {code}" in shown


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["account", "--mechanism", "gaussian_mu", "--param", "epsilon=1"], 1),
        (["account", "--no-such-option"], 2),
        (["no-such-command"], 2),
        (["plan", "--help"], 0),
    ],
)
def test_exit_codes_are_as_told(words: list[str], code: int) -> None:
    assert CliRunner().invoke(ROOT, words).exit_code == code


def test_the_program_ends_with_its_commands_exit_code() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "app.cli", "account", "--no-such-option"],
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 2
