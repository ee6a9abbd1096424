"""Every command, argument and option explains itself, and the examples are commands."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from click.testing import CliRunner
from typer.core import TyperGroup

from app.cli.lazy import EXAMPLES, LazyGroup
from app.cli.main import app

ROOT = typer.main.get_command(app)


def commands(command=ROOT, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(command, TyperGroup):
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        here = f"{path} {name}".strip()
        yield here, below
        yield from commands(below, here)


ALL = dict(commands())
LEAVES = {path: command for path, command in ALL.items() if not isinstance(command, TyperGroup)}


def test_a_command_says_what_it_does() -> None:
    for path, command in ALL.items():
        said = command.help or ""
        assert len(said) > 10, path
        assert said.split("\n\n")[0].rstrip().endswith("."), path


def test_every_argument_and_option_is_explained() -> None:
    for path, command in LEAVES.items():
        silent = [parameter.name for parameter in command.params if not parameter.help]
        assert (path, silent) == (path, [])


def test_a_command_shows_examples_that_are_commands() -> None:
    assert set(EXAMPLES) == set(LEAVES)
    for path, command in LEAVES.items():
        shown = CliRunner().invoke(ROOT, [*path.split(), "--help"], env={"COLUMNS": "80"}).output
        for example in EXAMPLES[path]:
            assert f"expunge {path}" in example
            assert example in " ".join(shown.split())
            words = shlex.split(example, comments=True)
            words = words[words.index("expunge") + 1 + len(path.split()) :]
            for ending in (">", "|"):
                if ending in words:
                    words = words[: words.index(ending)]
            context = typer.Context(command, info_name=path)
            command.make_parser(context).parse_args(args=words)


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


def test_a_list_of_commands_says_the_same_as_the_commands() -> None:
    for group in (ROOT, *(command for command in ALL.values() if isinstance(command, LazyGroup))):
        for name, listed in group.later.items():
            command = group.get_command(typer.Context(group), name)
            assert command.help.split("\n\n")[0].split() == listed.summary.split()
            assert listed.stub().get_short_help_str(200) == command.get_short_help_str(200)


HEAVY = ("alembic", "boto3", "numpy", "pyarrow", "scipy", "sqlalchemy", "torch", "uvicorn")


@pytest.mark.parametrize(
    ("words", "more"),
    [
        pytest.param(
            ["--version"],
            {"app.runtime.settings", "cryptography", "httpx", "pydantic_settings"},
            marks=pytest.mark.slow,
        ),
        (["--help"], {"app.runtime.settings", "cryptography", "httpx", "pydantic_settings"}),
        (["requests", "--help"], {"app.accounting", "securesystemslib"}),
        pytest.param(
            ["dataset", "--help"], {"app.accounting", "securesystemslib"}, marks=pytest.mark.slow
        ),
        (["plan", "--epsilon", "1"], {"securesystemslib"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_imports_only_what_it_needs(words: list[str], more: set[str]) -> None:
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('IMPORTED', *sys.modules, file=sys.stderr))\n"
        f"sys.argv[1:] = {words!r}\n"
        "from app.cli.main import app\n"
        "app()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    imported = set(done.stderr.partition("IMPORTED ")[2].split())
    assert "app.cli.main" in imported
    allowed = {"numpy", "scipy"} if words[0] == "plan" else set()
    assert imported.isdisjoint({*HEAVY, *more} - allowed)


def test_a_shell_completes_commands_without_importing_them() -> None:
    for line, word, expected in (
        (
            "expunge re",
            "1",
            {"requests", "retry", "refuse", "reopen", "reconcile", "recompute-kit"},
        ),
        ("expunge log f", "2", {"fsck"}),
    ):
        done = subprocess.run(
            [sys.executable, "-c", "from app.cli.main import app; app(prog_name='expunge')"],
            env={
                **os.environ,
                "_EXPUNGE_COMPLETE": "complete_bash",
                "COMP_WORDS": line,
                "COMP_CWORD": word,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert set(done.stdout.split()) == expected, done.stderr
