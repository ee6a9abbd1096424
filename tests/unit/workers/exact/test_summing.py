"""Stored sums less what left, or sums made anew: always those of the retained records."""

from dataclasses import replace

import numpy as np
import pytest

from app.domain.errors import RunFailedError
from app.domain.schema import FeatureSchema
from app.registry.statistics_file import StatisticsFile
from workers.exact import summing
from workers.exact.summing import Quantiser, sums_over

SCHEMA = FeatureSchema(shape=(3,), dtype="float32", offset=0.0, scale=1.0, classes=2)
QUANTISER = Quantiser(SCHEMA, 8.0)
RANDOM = np.random.default_rng(8)
PARTS = [
    (np.arange(20, 40), RANDOM.integers(0, 2, 20), RANDOM.normal(size=(20, 3)).astype(np.float32)),
    (np.arange(0, 20), RANDOM.integers(0, 2, 20), RANDOM.normal(size=(20, 3)).astype(np.float32)),
]
EVERYONE = frozenset(range(40))
LEFT = EVERYONE - {3, 25, 26}


def stored(seqs=EVERYONE):
    content = sums_over(PARTS, frozenset(seqs), QUANTISER, None).to_file().to_bytes()
    return StatisticsFile.from_bytes(content)


@pytest.fixture
def passes(monkeypatch):
    """How many records each pass over the parts looked for."""
    counts, over = [], summing._over

    def counted(parts, wanted, quantiser):
        counts.append(len(wanted))
        return over(parts, wanted, quantiser)

    monkeypatch.setattr(summing, "_over", counted)
    return counts


def test_only_what_left_is_read_to_forget_it(passes):
    before = stored()
    passes.clear()
    found = sums_over(PARTS, LEFT, QUANTISER, before)
    assert passes == [3]
    assert found.to_file().to_bytes() == stored(LEFT).to_bytes()


def test_what_is_stored_names_the_retained_records_alone():
    assert stored(LEFT).seqs.tolist() == sorted(LEFT)


def other_features():
    seqs, labels, features = PARTS[0]
    changed = features.copy()
    changed[5, 1] += 0.01
    return [(seqs, labels, changed), PARTS[1]]


def other_labels():
    seqs, labels, features = PARTS[0]
    return [(seqs, np.where(seqs == 25, 1 - labels, labels), features), PARTS[1]]


@pytest.mark.parametrize("changed", [other_features, other_labels])
def test_a_record_that_is_not_what_was_added_is_not_subtracted(changed, passes):
    before = stored()
    passes.clear()
    found = sums_over(changed(), LEFT, QUANTISER, before)
    assert passes == [3, len(LEFT)]
    assert found.to_file().to_bytes() == stored(LEFT).to_bytes()


def test_a_record_that_is_gone_already_is_not_subtracted():
    seqs, labels, features = PARTS[0]
    erased = [(seqs[6:], labels[6:], features[6:]), PARTS[1]]
    left = LEFT - set(range(20, 26))
    found = sums_over(erased, left, QUANTISER, stored())
    assert found.to_file().to_bytes() == stored(left).to_bytes()


@pytest.mark.parametrize(
    "of_another",
    [
        lambda file: replace(file, sums={}),
        lambda file: replace(file, sums={n: s.astype(np.float64) for n, s in file.sums.items()}),
        lambda file: stored(LEFT - {0}),
    ],
)
def test_sums_of_others_are_not_used(of_another):
    found = sums_over(PARTS, LEFT, QUANTISER, of_another(stored()))
    assert found.to_file().to_bytes() == stored(LEFT).to_bytes()


def test_a_record_in_no_part_or_in_two_is_an_error():
    with pytest.raises(RunFailedError, match="in no shard"):
        sums_over(PARTS, EVERYONE | {99}, QUANTISER, None)
    with pytest.raises(RunFailedError, match="twice"):
        sums_over([*PARTS, PARTS[0]], EVERYONE, QUANTISER, None)
