"""Commands that are imported when they are called, and the examples in their help.

A list of them needs their names and summaries, which are read from their source. What needs a
library that is not installed is listed all the same, and says so when it is called.
"""

import ast
import re
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

from app.cli.output import fail, with_json
from app.domain.errors import MissingExtraError
from app.domain.extras import missing
from app.runtime.processes.starting import uncollected

_PATH = re.compile(
    r"(?:^| )expunge "
    r"((?:(?:api-key|backbone|callback|dataset|log|model|run|signing-key|storage) )?\S+)"
)
_TEXT = """\
expunge init
EXPUNGE_DATABASE_URL=… EXPUNGE_MIGRATION_URL=… expunge init # servers of your own
expunge start churn.csv --target churned --subject customer
expunge start flats.csv --target rent --record id --name rents --yes
expunge down
expunge up
expunge up --detach
EXPUNGE_DATA_DIR=/srv/expunge EXPUNGE_PORT=9000 expunge up
expunge serve
EXPUNGE_HOST=0.0.0.0 expunge serve
expunge worker
CUDA_VISIBLE_DEVICES=1 expunge worker --no-dispatcher
expunge dispatcher
expunge demo
expunge forget digits --subject person-17 --wait
expunge forget digits --record record-3 --record record-4 --external-id ticket-4711
expunge forget digits --subject person-17 --receipt receipt.json
expunge status fr_0123456789abcdef --wait
expunge requests
expunge requests --state failed --model digits-mlp
expunge forget digits --subject person-17 --hold
expunge forget members --record m-17 --replacement corrected.jsonl
expunge accept fr_0123456789abcdef
expunge refuse fr_0123456789abcdef --ground '17(3)(b)' --explanation 'kept for the tax office'
expunge reopen fr_0123456789abcdef
expunge extend fr_0123456789abcdef --reason 'many requests at once'
expunge retry fr_0123456789abcdef
expunge cancel fr_0123456789abcdef
expunge certificates fr_0123456789abcdef --out proofs
expunge certificates fr_0123456789abcdef --since kept-in-march --out proofs
expunge download digits-mlp --out release
expunge download digits-mlp --trusted trusted-keys.json --out release
expunge erase-check person-17 --dataset digits
echo person-17 | expunge erase-check - --dataset digits
expunge verify release/digits-mlp-v2.certificate.json --weights release/digits-mlp-v2.safetensors \
--trusted trusted-keys.json
expunge verify proof.json --weights model.safetensors --trusted trusted-keys.json --receipt \
receipt.json
expunge verify proof.json --weights model.safetensors --trusted trusted-keys.json --witness \
witness.example.org+f1bbdc7a+BDoUGmYkuApo4R1g6fS4sWXSCtJgCJ0zCE4AgR9QXcbs
expunge verify dossier.zip --trusted trusted-keys.json
expunge dossier request fr_0123456789abcdef --receipt receipt.json --out dossier.zip
expunge dossier model digits-mlp --out dossier.zip
expunge audit digits-mlp
expunge audit digits-mlp --data my-digits.parquet --canaries 400 --confidence 0.99 --out audited
expunge verify-audit audited/audit.json --key auditor.pem --weights audited/release.safetensors
expunge predict release/digits-mlp-v2.safetensors --input digits.npz --out scores.parquet
expunge predict model.safetensors --certificate proof.json --trusted trusted-keys.json --input \
rows.csv --decimal , --out scores.parquet
expunge plan --epsilon 1 --delta 1e-5
expunge plan --epsilon 1 --delta 1e-5 --budget-epochs 5 --records 50000
expunge plan --model digits-mlp --json
expunge account --mechanism gradient_clipping --param initial_clip=20 --param gradient_clip=10 \
--param learning_rate=0.01 --param weight_decay=50 --param noise_std=0.25679 --param steps=11 \
--delta 1e-5
expunge dataset push digits digits.npz
expunge dataset push churn churn.csv --subject-id customer --drop signup
expunge dataset push churn churn-march.csv
expunge dataset push churn churn-corrected.csv --replace
expunge dataset push open-digits open-digits.npz --public
expunge dataset import members s3://exports/members/2026-01.parquet --wait
expunge dataset import members 's3://exports/members/2026-*.parquet'
expunge dataset imports members
expunge dataset imports members imp_0123456789abcdef --wait
expunge dataset cancel-import members imp_0123456789abcdef
expunge dataset retry-import members imp_0123456789abcdef --wait
expunge dataset columns members.csv --record-id id --subject-id person
expunge dataset columns members.csv --record-id id --write members.json
expunge dataset create members --columns members.json
expunge dataset alter members --column 'tenure=int16?' --column age=float64?
expunge dataset show digits
expunge dataset list
expunge dataset archive digits
expunge dataset destroy digits --dry-run
expunge dataset delete digits
expunge backbone define examples/backbone.json
expunge backbone upload random-features random-features.safetensors
expunge backbone add pictures --factory expunge.backbones:efficientnet_lite0 --shape 32,32,3 \
--option size=128 --layer _blocks.10:2x2 --layer _avg_pooling
expunge backbone add resnet --factory expunge.backbones:torchvision --option network=resnet18 \
--shape 3,64,64 --weights resnet18.pth --source 'torchvision, ImageNet'
expunge backbone show pictures
expunge backbone list
expunge model check my_models:build --shape 8,8 --classes 10 --option width=48
expunge model check my_models:text --shape 64 --classes 2 --vocabulary 5000
expunge backbone archive random-features
expunge backbone delete random-features
expunge model create examples/model.json --wait
expunge model create churn --dataset churn --target churned --data churn.csv --dry-run
expunge model create churn --dataset churn --target churned --data churn.csv --missing age=45 \
--bounds age=18:98 --accept-values --wait
expunge model create net --dataset digits --target label --classes 10 --bounds features=0:16 \
--shape features=8,8 --architecture my_models:build
expunge model upload digits-net weights.safetensors --wait
expunge model upload digits-net last.ckpt --key state_dict
expunge model show digits-mlp
expunge model show digits-mlp --wait
expunge model list
expunge model versions digits-mlp
expunge model versions digits-mlp --state certified
expunge model retrain digits-mlp --wait
expunge model refill digits-mlp --wait
expunge model derivatives digits-mlp
expunge model add-derivative digits-mlp support-bot --version 3 --contact ml@shop.example \
--callback https://shop.example/withdrawn
expunge model acknowledge digits-mlp der_0123456789abcdef 'trained anew from version 4'
expunge model archive digits-mlp
expunge model targets digits-mlp
expunge model publish digits-mlp registry
expunge model unpublish digits-mlp registry
expunge model delete digits-mlp
expunge model export release/digits-mlp-v2.safetensors --format onnx --out digits.onnx
expunge model policy digits-mlp policy.json
expunge model recompute digits-ridge
expunge model recompute digits-ensemble --member 3
expunge recompute-kit digits-ensemble --out kit
expunge run list
expunge run list --state failed --model digits-mlp
expunge run show run_0123456789abcdef
expunge run cancel run_0123456789abcdef
expunge run retry run_0123456789abcdef
expunge api-key create privacy-desk --scope forget:write --scope forget:read
expunge api-key create contractor --scope models:read --expires-in 90d
expunge api-key list
expunge api-key revoke key_0123456789abcdef
expunge callback list
expunge callback list --state dead
expunge callback redeliver cbv_0123456789abcdef
expunge callback secret
expunge callback secret --rotate
expunge reconcile
expunge reconcile --apply
expunge storage check
expunge storage rewrap-keys --from directory
expunge storage rewrap-keys --from kms:alias/expunge
expunge log checkpoint > kept-in-march
expunge log trail
expunge log trail --caller operator --limit 10
expunge log fsck
expunge log fsck --consistent-with kept-in-march
expunge signing-key rotate
expunge signing-key rotate --compromised-since 2026-03-01T00:00:00Z
expunge signing-key list
"""


def _by_command() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for example in _TEXT.splitlines():
        (path,) = _PATH.findall(example)
        found[path] = (*found.get(path, ()), example)
    return found


EXAMPLES = _by_command()
"""The examples of each command, by its path."""


def epilog(path: str) -> str | None:
    """Return the end of a command's help: its examples, a paragraph each."""
    examples = EXAMPLES.get(path)
    return None if examples is None else "\n\n".join(("Examples:", *examples))


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
