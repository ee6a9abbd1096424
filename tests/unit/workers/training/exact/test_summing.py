"""Stored sums less what left, or sums made anew: always those of the retained records."""

from dataclasses import replace

import numpy as np
import pytest

from app.domain.errors import RunFailedError
from app.domain.schema import InputSchema
from app.registry.statistics_file import StatisticsFile
from tests.support.specs import classification, multi_label, regression
from workers.training.exact import summing
from workers.training.exact.statistics import Targets
from workers.training.exact.summing import Quantiser, sums_less, sums_over
from workers.training.part import Part
from workers.training.tasks.task import INPUTS, TARGET

SCHEMA = InputSchema(shape=(3,), dtype="float32", offset=0.0, scale=1.0, classes=2)
QUANTISER = Quantiser(SCHEMA, 8.0, Targets(classification(2)))
RANDOM = np.random.default_rng(8)


def part(first):
    labels, features = RANDOM.integers(0, 2, 20), RANDOM.normal(size=(20, 3)).astype(np.float32)
    return Part(np.arange(first, first + 20), {INPUTS: features, TARGET: labels})


PARTS = [part(20), part(0)]
EVERYONE = frozenset(range(40))
LEFT = EVERYONE - {3, 25, 26}


def ascending(seqs):
    return np.array(sorted(seqs))


def summed(parts, left, before):
    """Return the stored sums less what left, and those of the records that did not, if it can."""
    found = sums_less(parts, ascending(left), QUANTISER, before)
    return None if found is None else found.to_file().to_bytes()


def stored(seqs=EVERYONE):
    content = sums_over(PARTS, ascending(seqs), QUANTISER).to_file().to_bytes()
    return StatisticsFile.from_bytes(content)


def rows(part, seqs):
    return part.only(ascending(seqs))


def test_what_left_is_all_that_is_needed_to_forget_it():
    gone = [rows(part, EVERYONE - LEFT) for part in PARTS]
    assert summed(gone, LEFT, stored()) == stored(LEFT).to_bytes()


@pytest.mark.parametrize("chunk_rows", [1, 2, 7, 20, 33])
def test_chunks_and_their_order_change_nothing(monkeypatch, chunk_rows):
    everything, left = stored().to_bytes(), stored(LEFT).to_bytes()
    monkeypatch.setattr(summing, "CHUNK_ROWS", chunk_rows)
    pieces = [rows(part, range(start, start + 3)) for part in PARTS for start in range(0, 40, 3)]
    for parts in (PARTS, PARTS[::-1], pieces):
        assert sums_over(parts, ascending(EVERYONE), QUANTISER).to_file().to_bytes() == everything
        assert summed(parts, LEFT, stored()) == left


def test_a_few_records_of_each_part_are_added_together(monkeypatch):
    products, over = [], summing.Statistics.over
    monkeypatch.setattr(
        summing.Statistics, "over", lambda x, y: (products.append(len(x)), over(x, y))[1]
    )
    stored()
    assert products == [40]


def test_what_is_stored_names_the_retained_records_alone():
    assert stored(LEFT).seqs.tolist() == sorted(LEFT)


def changed_in(name, change):
    first = PARTS[0]
    changed = first.tensors[name].copy()
    changed[5] = change(changed[5])
    return [Part(first.seqs, {**first.tensors, name: changed}), PARTS[1]]


def other_features():
    return changed_in(INPUTS, lambda row: row + 0.01)


def other_labels():
    return changed_in(TARGET, lambda label: 1 - label)


@pytest.mark.parametrize("changed", [other_features, other_labels])
def test_a_record_that_is_not_what_was_added_is_not_subtracted(changed):
    assert summed(changed(), LEFT, stored()) is None


def test_a_record_that_is_gone_already_is_not_subtracted():
    assert summed([rows(part, EVERYONE - LEFT - {25}) for part in PARTS], LEFT, stored()) is None


@pytest.mark.parametrize(
    "of_another",
    [
        lambda file: replace(file, sums={}),
        lambda file: replace(file, sums={n: s.astype(np.float64) for n, s in file.sums.items()}),
        lambda file: stored(LEFT - {0}),
    ],
)
def test_sums_of_others_are_not_used(of_another):
    assert summed(PARTS, LEFT, of_another(stored())) is None


def test_a_record_in_no_part_or_in_two_is_an_error():
    with pytest.raises(RunFailedError, match="in no shard"):
        sums_over(PARTS, ascending(EVERYONE | {99}), QUANTISER)
    with pytest.raises(RunFailedError, match="twice"):
        sums_over([*PARTS, PARTS[0]], ascending(EVERYONE), QUANTISER)
    with pytest.raises(RunFailedError, match="twice"):
        sums_less([*PARTS, PARTS[0]], ascending(LEFT), QUANTISER, stored())


OTHERS = {
    "labels": Targets(multi_label(("a", "b"))),
    "numbers": Targets(regression(("a", "b", "c")), 4.0),
}


@pytest.mark.parametrize("targets", OTHERS.values(), ids=OTHERS)
def test_subtraction_undoes_addition_for_targets_of_every_kind(targets):
    quantiser = Quantiser(SCHEMA, 8.0, targets)
    given = RANDOM.uniform(size=(40, targets.task.outputs)).astype(np.float32)
    parts = [
        Part(part.seqs, {INPUTS: part.tensors[INPUTS], TARGET: given[part.seqs]}) for part in PARTS
    ]
    before = StatisticsFile.from_bytes(
        sums_over(parts, ascending(EVERYONE), quantiser).to_file().to_bytes()
    )
    left = sums_over(parts, ascending(LEFT), quantiser).to_file().to_bytes()
    assert sums_less(parts, ascending(LEFT), quantiser, before).to_file().to_bytes() == left
    # A target that is no longer what was added is noticed, in whichever output it is.
    given[25, -1] += 0.3
    changed = [Part(p.seqs, p.tensors | {TARGET: given[p.seqs]}) for p in parts]
    assert sums_less(changed, ascending(LEFT), quantiser, before) is None
