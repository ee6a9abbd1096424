"""``expunge start``: from a file to a certified model that can forget, in one command."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from shlex import quote
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

from app.cli.altering import not_learned
from app.cli.commands.datasets import Asked, Drop, Table, Text, asked_table, existing_dataset
from app.cli.connection import service
from app.cli.options import Decimal, Delimiter, Encoding, option
from app.cli.output import conclude, fail, say
from app.cli.proposing import proposal_of
from app.cli.pushing import new_dataset, push_table
from app.cli.quoting import (
    CANDIDATES,
    HELD_OUT,
    WORDS,
    Quote,
    costs,
    earlier_runs,
    quoted,
    to_train,
)
from app.cli.waiting import wait_for_version
from app.client import ExpungeClient
from app.client.answers import Json
from app.domain.errors import ConflictError, InvalidInputError, TableError
from app.domain.heads import boosted_trees
from app.domain.schema import TableSchema
from app.domain.scores import metric_in_words, score_of
from app.domain.tasks.built_in import SQUARED, ClassificationSpec, RegressionSpec
from app.domain.tasks.spec import BuiltInSpec
from app.ledger.costs import Measured
from app.registry.datasets.columns.encoding import NO_CLASS, labels_of, numbers_in
from app.registry.datasets.columns.proposal import Choices
from app.registry.datasets.columns.reading import source_of
from app.registry.datasets.columns.sources import Source
from app.runtime.processes.detached import answers, start_detached, stop_detached
from app.runtime.settings import Settings

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,90}")
_LEAST_ROWS: Final = 100
"""Of fewer, a tenth says nothing about a model."""
_MOST_SHOWN: Final = 12
"""Of columns, and of classes."""


@dataclass(frozen=True)
class _Plan:
    """What is to be done: nothing was sent yet.

    Attributes:
        left_out: columns that are not kept, each with the reason.
        baseline: what one answer for all rows scores, in words.
        lacking: how many rows have no target, in words, if any have none.
        of_nobody: how many rows have no id of a person, where there is a column of them.
        reading: the options by which its file was read, as a command line has them.
    """

    name: str
    source: Source
    schema: TableSchema
    task: BuiltInSpec
    left_out: Mapping[str, str]
    baseline: str
    lacking: str | None
    of_nobody: int
    reading: str = ""


def start(
    files: Table,
    *,
    target: Annotated[str, option("The column to predict.")],
    subject: Annotated[
        str | None, option("The column of the persons' ids, by which they are forgotten.")
    ] = None,
    record: Annotated[
        str | None,
        option("The column that names each row; by default the one without repeated values."),
    ] = None,
    name: Annotated[str | None, option("Of the dataset; by default the file's.")] = None,
    drop: Drop = None,
    text: Text = None,
    regression: Annotated[
        bool, option("The target is a quantity, although its numbers are whole.", "--regression")
    ] = False,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    yes: Annotated[bool, option("Do not ask.", "--yes")] = False,
) -> None:
    """Learn a table on this machine: check it, start the service, push, train and certify.

    Shows what will happen and what forgetting will cost, and asks once; nothing is sent before.
    Of exact models of tables the better one on persons that it has not read is trained.
    """
    asked = asked_table(
        files,
        record_id=record,
        subject_id=subject,
        drop=drop,
        text=text,
        delimiter=delimiter,
        encoding=encoding,
        decimal=decimal,
    )
    name = name or _name_from(files[0].name.split(".")[0])
    dialect = {"delimiter": delimiter, "encoding": encoding, "decimal": decimal.strip(".")}
    reading = "".join(f" --{each} {quote(said)}" for each, said in dialect.items() if said)
    _started(asked, name, target, reading, regression=regression, yes=yes)


@dataclass(frozen=True)
class Started:
    """What ``start_rows`` has made.

    Attributes:
        dataset: its name, under which people are forgotten.
        model: the name of the model that stays.
        score: of ``metric`` on held-out persons; None if none are held out.
        baseline: what one answer for all rows scores.
        certificate: the bundle of the model's version.
    """

    dataset: str
    model: str
    metric: str | None
    score: float | None
    baseline: float | None
    certificate: Json


def start_rows(
    rows: Any,  # noqa: ANN401 - of any library
    *,
    target: str,
    subject: str | None = None,
    record: str | None = None,
    name: str | None = None,
    drop: Sequence[str] = (),
    regression: bool = False,
    yes: bool = False,
) -> Started:
    """Learn a table of pandas, polars or Arrow as ``expunge start`` learns a file.

    Args:
        rows: what Arrow reads as a table, or has the dataframe interchange protocol.
        target: the column to predict.
        subject: the column of the persons' ids, by which they are forgotten.
        record: the column that names each row; by default the one without repeated values.
        name: of the dataset; by default the target's.
        drop: columns that are not kept.
        regression: whether the target is a quantity, although its numbers are whole.
        yes: whether not to ask after what will happen was printed.

    Raises:
        ExpungeError: the rows cannot be learned, or the question was answered with no.
        ApiError: the service refused.
    """
    source = source_of(rows, "the table")
    return _started(
        Asked(source, record, subject, tuple(drop), ()),
        name or _name_from(target),
        target,
        "",
        regression=regression,
        yes=yes,
    )


def _name_from(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _started(
    asked: Asked, name: str, target: str, reading: str, *, regression: bool, yes: bool
) -> Started:
    plan = replace(_planned(asked, name, target, regression=regression), reading=reading)
    settings = Settings()
    url = settings.api_url or f"http://{settings.host}:{settings.port}"
    is_up, earlier = answers(url), list[Measured]()
    if is_up:
        with service() as client:
            _require_new(client, name)
            earlier = earlier_runs(client.models())
    quotes = quoted(plan.source, plan.schema, plan.task, earlier)
    chosen = to_train(quotes)
    _show(plan, quotes, chosen, url=url, is_up=is_up)
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidInputError("nothing was sent: look at this, then pass --yes or yes=True")
        if not typer.confirm("Go on?", err=True):
            raise InvalidInputError("nothing was sent")
    with ExitStack() as undone:
        if not is_up and settings.api_url is None:
            start_detached(settings)
            undone.callback(stop_detached, settings.data_dir)
        with service() as client:
            _require_new(client, name)
            with new_dataset(client, name, plan.schema):
                push_table(client, name, plan.source, plan.schema, replace=False)
                model = _trained(client, plan, f"{name}-{CANDIDATES[chosen]}", quotes[chosen])
            certificate = client.version_bundle(model["name"], model["certified"]["number"])
        undone.pop_all()
    _conclude(plan, quotes, model)
    found = model["certified"]["evaluation"]
    metric = found.get("headline")
    return Started(
        dataset=name,
        model=model["name"],
        metric=metric,
        score=score_of(found, metric),
        baseline=found.get("baseline"),
        certificate=certificate,
    )


def _planned(asked: Asked, name: str, target: str, *, regression: bool) -> _Plan:
    """Check all rows, and propose what is kept and learned of them."""
    source = asked.source
    for column in (target, asked.record_id, asked.subject_id, *asked.drop):
        if column is not None and column not in source.types:
            raise InvalidInputError(
                f"{source.name} has no column {column!r}, but {', '.join(source.types)}"
            )
    if target in (asked.record_id, asked.subject_id, *asked.drop):
        raise InvalidInputError(f"{target!r} is to be learned, so it is no id and not left out")
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"--name {name!r}: expected a-z, A-Z, 0-9, dot, dash, underscore")
    rows = source.whole()
    if source.rows < _LEAST_ROWS:
        raise InvalidInputError(
            f"{source.name} has {source.rows} rows, too few to learn from and to measure on: "
            f"at least {_LEAST_ROWS} are needed"
        )
    asked = _with_ids(asked, target, rows)
    schema = asked.schema()
    # Next month's rows may lack what these have.
    columns = tuple(
        (each, kind if kind.is_list else replace(kind, nullable=True))
        for each, kind in schema.columns
    )
    ids = {each for each in schema.names if each != target and _names_rows(rows[each])}
    left_out = dict.fromkeys(sorted(ids), "another value in each row, as an id has")
    choices = Choices(target=target, regression=regression, drop=tuple(left_out))
    task = _task_leaving_out(left_out, replace(schema, columns=columns), choices, source)
    kept = tuple((each, kind) for each, kind in columns if each not in left_out)
    with source.places():
        baseline = _baseline(task, rows)
        lacking = not_learned(source, task)
    of_nobody = 0 if schema.subject_id is None else rows[schema.subject_id].null_count
    schema = replace(schema, columns=kept)
    return _Plan(name, source, schema, task, left_out, baseline, lacking, of_nobody)


def _task_leaving_out(
    left_out: dict[str, str], schema: TableSchema, choices: Choices, source: Source
) -> BuiltInSpec:
    """Return a task on a table; inputs that cannot be read go to ``left_out`` with the reason."""
    try:
        task = proposal_of(schema, choices, source).task
    except TableError as error:
        problems = getattr(error.__cause__, "problems", ())
        if not problems:
            raise
        found = {each.column: each.reason.partition(";")[0] for each in problems}
        if choices.target in found:
            reason = f"{choices.target!r} cannot be learned: {found[choices.target]}"
            raise InvalidInputError(reason) from error
        left_out |= found
        again = replace(choices, drop=tuple(left_out))
        return _task_leaving_out(left_out, schema, again, source)
    except InvalidInputError as error:
        if not left_out:
            raise
        reasons = [f"{column} ({reason})" for column, reason in left_out.items()]
        raise InvalidInputError(f"{error}: not read are {', '.join(reasons)}") from error
    if isinstance(task, RegressionSpec):
        task = replace(task, loss=SQUARED)  # which trees learn
    boosted_trees.require_task(task)
    return task


def _with_ids(asked: Asked, target: str, rows: pa.Table) -> Asked:
    """Return the table with a column that names each row, or say which could."""
    if asked.record_id or "record_id" in asked.source.types or asked.source.files[0].index:
        return asked
    unique = [
        name
        for name in rows.column_names
        if name != target and name not in asked.drop and _names_rows(rows[name])
    ]
    others = [each for each in unique if each != asked.subject_id]
    if unique == [asked.subject_id]:  # a row is a person
        return asked._replace(record_id=asked.subject_id, subject_id=None)
    if len(others) == 1:
        return asked._replace(record_id=others[0])
    if others:
        raise InvalidInputError(f"name the column of the rows' ids with --record: {others}")
    raise InvalidInputError(
        f"no column of {asked.source.name} names each row once, so rows could not be found again: "
        "add one, such as by DataFrame.to_csv(…, index_label='record_id')"
    )


def _names_rows(column: pa.ChunkedArray) -> bool:
    """Return whether a column has an id for each row: no number with decimals, no list."""
    texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not (texts or pa.types.is_integer(column.type)) or column.null_count:
        return False
    if texts and pc.any(pc.match_substring_regex(column, r"^\s*[-+]?[0-9]*[.,][0-9]")).as_py():
        return False
    return bool(pc.count_distinct(column).as_py() == len(column))


def _baseline(task: BuiltInSpec, rows: pa.Table) -> str:
    """Return what one answer for all rows with a target scores."""
    if isinstance(task, ClassificationSpec):
        labels = labels_of(rows, task.target)
        found = np.bincount(labels[labels != NO_CLASS], minlength=task.classes)
        usual = task.target.classes[int(found.argmax())]
        return f"always {usual!r} is right for {found.max() / found.sum():.1%}"
    numbers = numbers_in(rows, task.columns[-1:])
    numbers = numbers[~np.isnan(numbers)]
    error = float(np.abs(numbers - numbers.mean()).mean())
    return f"always {numbers.mean():.4g} is wrong by {error:.4g} in the mean"


def _require_new(client: ExpungeClient, name: str) -> None:
    if existing_dataset(client, name) is not None:
        raise ConflictError(
            f"dataset {name!r} exists: push more rows with 'expunge dataset push {name} FILE', or "
            "give another --name"
        )
    for model in client.models():
        if model["name"] in {f"{name}-{ending}" for ending in CANDIDATES.values()}:
            raise ConflictError(f"model {model['name']!r} exists: give another --name")


def _some(names: Iterable[str]) -> str:
    first, others = (every := [*names])[:_MOST_SHOWN], len(every) - _MOST_SHOWN
    return ", ".join(first) + (f" and {others} more" if others > 0 else "")


def _show(plan: _Plan, quotes: Mapping[str, Quote], chosen: str, *, url: str, is_up: bool) -> None:
    schema, task = plan.schema, plan.task
    whose = ", of one person each: --subject names the column of who owns several"
    if schema.subject_id is not None:
        whose = f", of persons named by {schema.subject_id!r}"
        whose += f", but for {plan.of_nobody:,} rows" * bool(plan.of_nobody)
    say(f"{plan.source.name}: {plan.source.rows:,} rows, named by {schema.record_id!r}{whose}")
    target = task.columns[-1]
    classes = ""
    if isinstance(task, ClassificationSpec):
        names = task.target.classes
        classes = f": {_some(map(str, names))}"
        if len(names) > 2 and isinstance(names[0], int):
            classes += " (as classes; --regression learns a quantity)"
    say(f"  learned   {target}{classes}; {plan.baseline}")
    if plan.lacking is not None:
        say(f"            {plan.lacking}")
    say(f"  read      {_some(each for each in schema.names if each != target)}")
    for reason in dict.fromkeys(plan.left_out.values()):
        columns = (column for column, each in plan.left_out.items() if each == reason)
        say(f"  not kept  {_some(columns)}: {reason}")
    say("  public    names of columns, classes, values and rounded scales: with each version")
    say("What it costs to forget a person:")
    for line in costs(quotes):
        say(f"  {line}")
    owners = "rows" if schema.subject_id is None else "persons"
    what = WORDS[chosen].partition("  ")[0]
    say(f"Trained here: {what}, without a tenth of the {owners}, to measure it.")
    say(f"The rows go to the service {'that runs ' if is_up else 'to be started '}at {url}.")


def _trained(client: ExpungeClient, plan: _Plan, name: str, quote: Quote) -> Json:
    """Train what is chosen; return the model with its certified version."""
    client.define_model(
        {
            "name": name,
            "dataset": plan.name,
            "task": quote.task,
            "architecture": quote.architecture,
            "recipe": {"held_out_fraction": HELD_OUT},
        }
    )
    return wait_for_version(client, name)


def _conclude(plan: _Plan, quotes: Mapping[str, Quote], model: Json) -> None:
    name, found = model["name"], model["certified"]["evaluation"]
    score, measured = score_of(found, found.get("headline")), ""
    if score is not None:
        measured = (
            f"{metric_in_words(found['headline'])} {score:.4g}, where one answer for all has "
            f"{found['baseline']:.4g}, on {found['held_out_records']:,} rows that it has not read; "
        )
    seconds = sum((model["latest_run"]["phase_seconds"] or {}).values())
    say(f"{name} is certified: {measured}in {seconds:.1f} s")
    for warning in model["warnings"]:
        fail(warning)
    say("Next:")
    for line in _next_commands(plan, name):
        say(f"  {line}")
    conclude(
        {
            "dataset": plan.name,
            "model": model,
            "not_read": [*plan.left_out],
            "quoted": {mechanism: asdict(quote) for mechanism, quote in quotes.items()},
        }
    )


def _next_commands(plan: _Plan, model: str) -> Iterator[str]:
    person = "--record" if plan.schema.subject_id is None else "--subject"
    file = f"NEXT.csv{plan.reading}"
    yield f"expunge forget {plan.name} {person} ID --wait"
    yield (
        f"expunge download {model} --out release && expunge predict "
        f"release/{model}-v*.safetensors --input {file} --out scores.parquet"
    )
    yield f"expunge dataset push {plan.name} {file} && expunge model retrain {model} --wait"
    yield "expunge down, and expunge up: stop the service, and start it again"
