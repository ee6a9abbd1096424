"""What ``expunge start`` quotes: each way to learn and forget is carried out on the rows."""

import json
import math
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median, stdev
from typing import Final

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray

from app.client.answers import Json
from app.domain.architectures import ENSEMBLE
from app.domain.errors import InvalidInputError
from app.domain.heads import boosted_trees, linear_head
from app.domain.schema import TableSchema
from app.domain.scores import HIGHER_IS_BETTER, lost, metric_in_words
from app.domain.states import arithmetic_s
from app.domain.tasks import catalogue
from app.domain.tasks.spec import BuiltInSpec
from app.ledger.costs import Measured, seconds_of
from app.registry.datasets.columns.cells import plain
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.columns.proposal import with_knots
from app.registry.datasets.columns.sources import Source, typed_parts
from app.runtime.processes.starting import python_command

HELD_OUT: Final = 0.1
CANDIDATES: Final = {"boosting": "trees", "exact_training": "linear"}
"""What forgets exactly, in seconds, and the end of the model's name."""
_ENSEMBLE: Final = "sharded_retraining"
_NETWORK: Final = {"name": "mlp", "options": {"hidden": [64]}}
WORDS: Final = {
    "boosting": "boosted trees  exact: grown anew in about {seconds:.2g} s",
    _ENSEMBLE: "8 of trees     exact: one is left out at once, grown by night in {seconds:.2g} s",
    "exact_training": "linear head    exact: computed anew in about {seconds:.2g} s",
    "retraining": "a network      exact: trained anew in about {seconds:.2g} s; of 8, one is left "
    "out at once,\n                 and trained by night in {member:.2g} s",
    "gradient_clipping": "with noise     in about {seconds:.2g} s, and most of what a network knew",
}
_MOST_ROWS: Final = 100_000
"""Rows of a larger table that are learned from and measured on before anything is sent."""
_FOLDS: Final = 5
_MOST_FOLDED: Final = 8888
"""Rows of a table in so many parts: what learned from the others is measured on each."""
_ALIKE: Final = 4
"""Runs of so many times the work, or a fraction of it, tell what another takes."""
_LONG_S: Final = 2.0
"""To grow trees anew: from then on members that are left out are worth what they lose."""
_OF_TREES: Final = {"name": ENSEMBLE, "members": 8, "of": {"name": boosted_trees.NAME}}
_AROUND_S: Final = 1.0
"""What a run takes beside its arithmetic, where none was seen."""


@dataclass(frozen=True)
class Quote:
    """What a way of forgetting will take, and score on persons that it has not read.

    Attributes:
        score: the mean over the parts that are measured on; None where it is not known.
        parts: the score on each.
        architecture: what learns.
        task: how it reads, and what it learns.
    """

    seconds: float
    metric: str | None
    score: float | None
    parts: Sequence[float]
    architecture: Json
    task: Json

    @property
    def lost(self) -> float:
        """What it is measured by: less is better."""
        if self.metric is None or self.score is None:
            return math.inf
        higher = HIGHER_IS_BETTER[self.metric]
        return lost(before=0, after=self.score, higher_is_better=higher)


def quoted(
    source: Source, schema: TableSchema, task: BuiltInSpec, earlier: Sequence[Measured]
) -> dict[str, Quote]:
    """Carry each way out on the rows, or a sample; return what it takes on all, by mechanism.

    Runs like it that the service has carried out already tell better what they take.

    Raises:
        InvalidInputError: the sample cannot be learned.
    """
    rows = pa.concat_tables([part.records for part in typed_parts(source, schema)])
    for column in task.target_columns:
        rows = rows.filter(rows[column].is_valid())
    order, measured = _folds(plain(rows[schema.subject_id or schema.record_id]))
    rows = rows.take(pa.array(order)).select(list(task.columns))
    ways = _ways(task, rows, every=len(measured) > 1)
    asked = {
        "ways": [(mechanism, way, read.to_json()) for mechanism, way, read in ways],
        "measured": measured,
        "retained": round(source.rows * (1 - HELD_OUT)),
    }
    command = python_command("workers", "calibrate")
    content = json.dumps(asked).encode() + b"\n" + to_parquet(rows)
    done = subprocess.run(command, check=False, input=content, stdout=subprocess.PIPE)
    if done.returncode != 0:  # it has said why
        raise typer.Exit(1)
    quotes = dict[str, Quote]()
    tried = list(zip(ways, json.loads(done.stdout), strict=True))
    for (mechanism, architecture, read), found in tried:
        if "timed" not in found:
            continue
        timed, gradients, width = found["timed"], found["gradients"], read.schema().size
        seconds = _seconds(mechanism, timed, gradients, earlier, width=width)
        told = found["metric"], found["score"], found["parts"]
        quote = Quote(seconds, *told, architecture, read.to_json())
        if mechanism not in quotes or quote.lost < quotes[mechanism].lost:
            quotes[mechanism] = quote
    if quotes.keys().isdisjoint(CANDIDATES):
        raise InvalidInputError(f"this cannot be learned: {tried[0][1]['reason']}")
    return quotes


def _ways(task: BuiltInSpec, rows: pa.Table, *, every: bool) -> list[tuple[str, Json, BuiltInSpec]]:
    """Return what forgets, what learns, and how it reads; ``every`` way for a small table."""
    norm = linear_head.norm_for(task)
    linear = {"name": linear_head.NAME, "options": {} if norm is None else {"feature_norm": norm}}
    trees = [{}, {"leaves": 4}] if every else [{}]
    curves = with_knots(task, rows)
    return [
        *(("boosting", {"name": boosted_trees.NAME, "options": each}, task) for each in trees),
        *([] if every else [(_ENSEMBLE, _OF_TREES, task)]),
        ("exact_training", linear, task),
        *([("exact_training", linear, curves)] if curves != task else []),
        ("retraining", _NETWORK, task),
        ("gradient_clipping", _NETWORK, task),
    ]


def _folds(owners: pa.Array) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Return a sample's rows, and the ranges of them that are measured on; nobody is in two."""
    codes = owners.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    codes = np.where(codes < 0, len(codes) + np.arange(len(codes)), codes)
    known, codes = np.unique(codes, return_inverse=True)
    ranks = np.random.default_rng(0).permutation(len(known))[codes]
    order = np.argsort(ranks, kind="stable")
    if len(order) > _MOST_FOLDED:
        order = order[:_MOST_ROWS]
        first = np.searchsorted(ranks[order], ranks[order[round(len(order) * (1 - HELD_OUT))]])
        return order, [(int(first), len(order))]
    parts = ranks[order] * _FOLDS // len(known)
    ends = np.searchsorted(parts, np.arange(_FOLDS + 1)).tolist()
    return order, [pair for pair in pairwise(ends) if pair[0] < pair[1]]


def to_train(quotes: Mapping[str, Quote]) -> str:
    """Return what is trained: what was best on what it had not read.

    A head is, too, where trees are not better by more than the standard error of the difference on
    several parts (Breiman et al. 1984): it is simpler, and forgets sooner.
    """
    best = min((each for each in CANDIDATES if each in quotes), key=lambda each: quotes[each].lost)
    trees, linear = (quotes.get(each) for each in CANDIDATES)
    if trees is not None and linear is not None and linear.score is not None:
        apart = [a - b for a, b in zip(trees.parts, linear.parts, strict=True)]
        if len(apart) > 1 and linear.lost - trees.lost <= stdev(apart) / math.sqrt(len(apart)):
            best = "exact_training"
    return best


def _seconds(
    mechanism: str,
    timed: Sequence[tuple[float, float]],
    gradients: float,
    earlier: Sequence[Measured],
    *,
    width: int,
) -> float:
    """Return how long a run takes: by earlier ones of about its size, else by those on a sample."""
    size = gradients * width
    alike = [each for each in earlier if size / _ALIKE <= each.gradients <= size * _ALIKE]
    known = seconds_of(alike, mechanism, size)
    if known is not None:
        return known.expected
    (fewer, before), (more, after) = timed
    each_takes = max((after - before) / max(more - fewer, 1), after / more / 2)
    around = median(each.rest_s for each in earlier) if earlier else _AROUND_S
    return around + after + each_takes * (gradients - more)


def earlier_runs(models: Sequence[Json]) -> list[Measured]:
    """Return the newest runs of a service's models; a gradient's work grows with the inputs."""
    found = list[Measured]()
    for model in models:
        run = model["latest_run"]
        if run is None or run["state"] != "published" or model["archived_at"] is not None:
            continue
        begun, ended = (datetime.fromisoformat(run[each]) for each in ("started_at", "finished_at"))
        arithmetic = arithmetic_s(run["phase_seconds"])
        found.append(
            Measured(
                run["plan"]["mechanism"],
                run["kind"] == "unlearn",
                run["plan"]["predicted"]["gradient_computations"]
                * catalogue.from_json(model["task"]).schema().size,
                arithmetic,
                (ended - begun).total_seconds() - arithmetic,
            )
        )
    return found


def costs(quotes: Mapping[str, Quote]) -> Iterator[str]:
    """Say what each way of forgetting takes."""
    for mechanism, words in WORDS.items():
        quote = quotes.get(mechanism)
        is_whole = mechanism != _ENSEMBLE
        if quote is not None and (is_whole or quotes["boosting"].seconds >= _LONG_S):
            told = ""
            if mechanism in (*CANDIDATES, _ENSEMBLE) and quote.score is not None:
                told = f"; {metric_in_words(str(quote.metric))} about {quote.score:.3g}"
                told += ", by splines" * any("knots" in each for each in quote.task["inputs"])
            yield words.format(seconds=quote.seconds, member=quote.seconds / 8) + told
