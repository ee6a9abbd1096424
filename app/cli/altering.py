"""What a table's missing and unlisted values, and an altered schema, mean for models."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from app.client import ExpungeClient
from app.domain.columns import CategoryColumn, Column, NumberColumn
from app.domain.schema import TableSchema
from app.domain.tasks import catalogue
from app.domain.tasks.custom import CustomSpec
from app.domain.tasks.spec import TaskSpec
from app.registry.datasets.columns.cells import MISSING_WORDS, plain, texts_of
from app.registry.datasets.columns.encoding import without_target
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.sources import Source


class Learner(NamedTuple):
    """A model of a dataset."""

    name: str
    task: TaskSpec

    def input(self, name: str) -> Column | None:
        """Return how it reads a column."""
        return next((each for each in self.task.input_columns if each.name == name), None)

    def missing(self, name: str) -> str | None:
        """Say what it makes of a missing value in a column that it reads; None without a rule."""
        column = self.input(name)
        if isinstance(self.task, CustomSpec):
            return "goes to its own class"
        if name in self.task.target_columns:
            return "leaves its row out of what is learned"
        if isinstance(column, NumberColumn) and column.missing is not None:
            return f"counts as {column.missing:g}"
        if isinstance(column, CategoryColumn) and column.missing is not None:
            return f"counts as {column.missing!r}"
        if isinstance(column, CategoryColumn) and column.other:
            return "counts as any unlisted value"
        return None


def learners(client: ExpungeClient, dataset: str) -> list[Learner]:
    """Return a dataset's models that are not archived."""
    return [
        Learner(model["name"], catalogue.from_json(model["task"]))
        for model in client.models(dataset=dataset)
        if model["archived_at"] is None
    ]


def meanings(
    models: Sequence[Learner], before: TableSchema, after: TableSchema, source: Source | None = None
) -> Iterator[str]:
    """Yield what an alteration, and the unlisted values of a table, mean for each model."""
    kinds = dict(before.columns)
    for name, kind in after.columns:
        held = kinds.get(name)
        if held == kind:
            continue
        yield f"{name!r}: {'new, ' if held is None else f'{held} becomes '}{kind}"
        for model in models:
            if name not in model.task.columns:
                yield f"  {model.name} does not use it"
                continue
            if held is None or replace(held, nullable=kind.nullable) != kind:
                yield f"  {model.name} reads stored rows as before"
            if kind.nullable and held is not None and not held.nullable:
                rule = model.missing(name) or "is refused: its task has no rule for one"
                yield f"  {model.name}: a missing value {rule}"
    for model in models if source is not None else ():
        for column in model.task.input_columns:
            if isinstance(column, CategoryColumn) and (count := _unlisted(source, column)):
                rule = "count as one" if column.other else "stop its next run: its task lacks other"
                yield f"{model.name}: {count} unlisted value(s) of {column.name!r} {rule}"


def not_learned(source: Source, task: TaskSpec) -> str | None:
    """Say how many rows of a table have no target, so that a task does not learn from them."""
    count, problems = 0, Problems()
    for problems.first, part in source.parts():
        count += without_target(part, task, problems)
    with source.places():
        problems.raise_any()
    if not count:
        return None
    names = " and ".join(map(repr, task.target_columns))
    return f"{count:,} of {source.rows:,} rows have no value of {names}: not learned from"


def _unlisted(source: Source | None, column: CategoryColumn) -> int:
    listed, found = {value.lower() for value in column.values}, set[str]()
    for _, part in () if source is None else source.parts():
        if column.name in part.column_names:
            found |= {*texts_of(plain(part[column.name])).distinct}
    return sum(text.lower() not in listed for text in found - MISSING_WORDS)
