"""Paired canaries: two contents for each id, of which a coin of the auditor's chooses one.

All that reaches the service beside the chosen contents (ids, order, counts, the other records) does
not depend on the coins. The contents are rows of the auditor's table; each has the target of
another row, so that only a model that has learned this very row expects it.
"""

import secrets
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from app.domain.columns import ArrayColumn, CategoryColumn, Column, ImageColumn, NumberColumn
from app.domain.errors import InvalidInputError
from app.domain.schema import WIDTHS, TableSchema
from app.domain.tasks.built_in import ClassificationSpec, MultiLabelSpec, RegressionSpec
from app.domain.tasks.spec import TaskSpec
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.typed import typed_rows

_OTHERS_PER_CANARY: Final = 5
_TEXT_LENGTH: Final = 40


@dataclass(frozen=True, eq=False, repr=False)
class Canaries:
    """What an audit pushes, and what it keeps to itself.

    Attributes:
        others: the records that stay, with their ids.
        ids: of the canaries.
        contents: both contents of each canary, in the order of the ids.
        coins: which one is pushed.
    """

    others: pa.Table
    ids: tuple[str, ...]
    contents: tuple[pa.Table, pa.Table]
    coins: tuple[int, ...] = field(repr=False)

    def chosen(self) -> pa.Table:
        """Return the contents that are pushed."""
        both = pa.concat_tables(self.contents)
        return both.take(
            pa.array([len(self.ids) * coin + place for place, coin in enumerate(self.coins)])
        )


def prepare(rows: pa.Table | None, task: TaskSpec, schema: TableSchema, canaries: int) -> Canaries:
    """Make pairs of a table's rows, or of generated ones; all that is random is unpredictable.

    Raises:
        InvalidInputError: there are too few rows, or none can be generated for this task.
        InvalidRecordsError: a column is missing, or has values of another type.
    """
    random = np.random.default_rng(secrets.randbits(128))
    if rows is None:
        rows = _generated(task, schema, (2 + _OTHERS_PER_CANARY) * canaries, random)
    if rows.num_rows < 4 * canaries:
        raise InvalidInputError(
            f"{canaries} canaries need {4 * canaries} rows: two each, and as many others; bring "
            "more, or give fewer --canaries"
        )
    ids = [f"record-{secrets.token_hex(8)}" for _ in range(rows.num_rows - canaries)]
    rows = rows.take(pa.array(random.permutation(rows.num_rows)))
    kept = [name for name in rows.column_names if name in schema.names]
    # Both contents of a canary have its id.
    rows = rows.select(kept).append_column(schema.record_id, pa.array([*ids[:canaries], *ids]))
    problems = Problems()
    rows = pa.Table.from_batches([typed_rows(rows.combine_chunks(), schema, problems)])
    problems.raise_any()
    contents, others = rows.slice(0, 2 * canaries), rows.slice(2 * canaries)
    for name in task.target_columns:  # all from the same other row
        place = contents.column_names.index(name)
        given = rows[name].take(pa.array(np.arange(2 * canaries) + 1))
        contents = contents.set_column(place, contents.field(place), given)
    return Canaries(
        others=others,
        ids=tuple(ids[:canaries]),
        contents=(contents.slice(0, canaries), contents.slice(canaries)),
        coins=tuple(secrets.randbelow(2) for _ in range(canaries)),
    )


def _generated(task: TaskSpec, schema: TableSchema, count: int, random: Any) -> pa.Table:  # noqa: ANN401
    """Return random rows that the task can read, with targets that nothing predicts."""
    if not task.input_columns or schema.subject_id is not None:
        raise InvalidInputError("the task reads its columns itself: bring rows with --data")
    whole = {name for name, kind in schema.columns if kind.kind in WIDTHS and "int" in kind.kind}
    found: dict[str, Any] = {
        column.name: _values(column, count, random, whole=column.name in whole)
        for column in task.input_columns
    }
    match task:
        case ClassificationSpec():
            picked = random.integers(len(task.target.classes), size=count)
            found[task.target.name] = pa.array(task.target.classes).take(pa.array(picked))
        case MultiLabelSpec():
            found |= {name: random.integers(2, size=count) for name in task.labels}
        case RegressionSpec():
            for name in task.targets:
                number = random.standard_normal(count) / task.scale + task.offset
                found[name] = np.rint(number) if name in whole else number
    if task.weight is not None:
        found[task.weight.column] = np.full(count, task.weight.most)
    return pa.table(found)


def _values(column: Column, count: int, random: Any, *, whole: bool) -> Any:  # noqa: ANN401
    """Return random values of a column, which are of usual size for a network that reads them."""
    match column:
        case NumberColumn(low=float(low), high=float(high)):
            numbers = random.uniform(low, high, count)
        case NumberColumn(knots=(first, *_, last)):
            numbers = random.uniform(first, last, count)
        case NumberColumn():
            numbers = random.standard_normal(count) / column.scale + column.offset
        case CategoryColumn():
            return np.array(column.values)[random.integers(len(column.values), size=count)]
        case ImageColumn():
            raise InvalidInputError("images are not made up here: bring rows with --data")
        case ArrayColumn():
            size, bytes_ = count * column.width, column.dtype == "uint8"
            if column.vocabulary is not None or bytes_:
                numbers = random.integers(column.vocabulary or 256, size=size)
            else:
                offset, scale = column.scaling
                numbers = random.standard_normal(size) / scale + offset
            items = pa.array(np.rint(numbers) if whole else numbers).cast(
                getattr(pa, column.dtype)()
            )
            return pa.FixedSizeListArray.from_arrays(items, column.width)
        case _:
            letters = random.integers(97, 123, size=(count, min(column.length, _TEXT_LENGTH)))
            return [bytes(each.tolist()).decode() for each in letters]
    return np.rint(numbers) if whole else numbers
