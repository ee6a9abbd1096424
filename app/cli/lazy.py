"""Commands that are imported when they are called.

A list of them needs their names and summaries, which are read from their source. What needs a
library that is not installed is listed all the same, and says so when it is called.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandInfo

from app.cli.examples import epilog
from app.cli.output import fail, with_json
from app.domain.errors import MissingExtraError
from app.domain.extras import missing
from app.runtime.processes.starting import uncollected

WITHOUT_FACTS = {"up", "serve", "worker", "dispatcher", "demo", "api-key revoke"}
"""Commands that run until they are stopped, or do one thing in silence."""


@dataclass(frozen=True)
class Listed:
    """A command, or a group of them, that was not imported yet.

    Attributes:
        module, name: where it is defined, below ``app.cli.commands``.
        extra: what its module may need.
        panel: where help lists it.
        within: what is added to it if it is a group.
    """

    module: str
    name: str
    extra: str
    panel: str | None = None
    within: tuple["Listed", ...] = ()

    @property
    def word(self) -> str:
        """What it is called on the command line; a keyword of Python ends with _ in its module."""
        return self.name.removesuffix("_").replace("_", "-")

    @property
    def summary(self) -> str:
        """The first paragraph of its help."""
        return _summaries(self.module)[self.name]

    def stub(self) -> TyperCommand:
        """Return what a list needs of it."""
        return TyperCommand(self.word, help=self.summary, rich_help_panel=self.panel)


@cache
def _summaries(module: str) -> dict[str, str]:
    """Return the summaries of what a module defines, or has from others, without importing it."""
    source = (Path(__file__).parent / "commands" / f"{module}.py").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.ImportFrom(module=str(path)) if path.startswith("app.cli.commands."):
                found |= _summaries(path.rpartition(".")[2])
            case ast.FunctionDef():
                text = ast.get_docstring(node) or ""
                found[node.name] = " ".join(text.partition("\n\n")[0].split())
            case ast.Assign(targets=[ast.Name(name)], value=ast.Call(keywords=keywords)):
                for each in keywords:
                    if each.arg == "help":
                        found[name] = ast.literal_eval(each.value)
    return found


@cache
def _loaded(listed: Listed, prefix: str) -> Any:  # noqa: ANN401 - a command or a group
    """Import a command."""
    wrapper = typer.Typer(add_completion=False)
    try:
        with uncollected():
            found = getattr(import_module(f"app.cli.commands.{listed.module}"), listed.name)
    except ModuleNotFoundError as error:
        anything = {"allow_extra_args": True, "ignore_unknown_options": True}
        absent = _absent(missing(error, extra=listed.extra), listed.summary)
        wrapper.command(listed.word, rich_help_panel=listed.panel, context_settings=anything)(
            absent
        )
    else:
        if isinstance(found, typer.Typer):
            _complete(found, f"{listed.word} ")
            group = lazy_group(listed.within, f"{listed.word} ")
            wrapper.add_typer(found, name=listed.word, cls=group, rich_help_panel=listed.panel)
        else:
            wrapper.command(listed.word, rich_help_panel=listed.panel)(found)
            _complete(wrapper, prefix)
    return typer.main.get_group(wrapper).commands[listed.word]


class LazyGroup(TyperGroup):
    """Own commands, and those of ``later``."""

    later: ClassVar[Mapping[str, Listed]] = {}
    prefix: ClassVar[str] = ""
    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - Typer has a Click of its own
        """Return all names, own ones first."""
        return [*super().list_commands(ctx), *(name for name in self.later)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Return a command; for a list, what a list needs of it."""
        listed = self.later.get(cmd_name)
        if listed is None:
            return super().get_command(ctx, cmd_name)
        return listed.stub() if self._listing else _loaded(listed, self.prefix)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write help without importing what it lists."""
        with self._only_listing():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ANN401
        """Return the names that complete a word."""
        with self._only_listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _only_listing(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


def lazy_group(members: tuple[Listed, ...], prefix: str = "") -> type[LazyGroup]:
    """Return a class of groups that import ``members`` when they are called."""
    by_name = {each.word: each for each in members}
    return type("Group", (LazyGroup,), {"later": by_name, "prefix": prefix})


def _absent(error: MissingExtraError, summary: str) -> Callable[..., None]:
    def command() -> None:
        fail(f"error: {error}")
        raise typer.Exit(1)

    command.__doc__ = f"{summary}\n\nNot installed: it needs the extra {error.extra!r}."
    return command


def _complete(commands: typer.Typer, prefix: str = "") -> None:
    """Give commands their examples, errors in words, and ``--json`` where they print facts."""
    from app.cli.connection import errors_in_words  # noqa: PLC0415 - slow to import

    for command in commands.registered_commands:
        path = prefix + _name(command)
        command.epilog = epilog(path)
        if command.callback is not None:
            told = errors_in_words()(command.callback)
            command.callback = told if path in WITHOUT_FACTS else with_json(told)


def _name(command: CommandInfo) -> str:
    if command.name is not None:
        return command.name
    return "" if command.callback is None else command.callback.__name__.replace("_", "-")
