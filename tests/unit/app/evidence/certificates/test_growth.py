"""No certificate takes back what an older one of the same lineage accounts for."""

import json
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any

import pytest

from app.domain.errors import VerificationError
from app.evidence.certificates.bundle import Growth, TreeGrowth
from app.evidence.certificates.growth import check_growth
from app.evidence.certificates.schema import (
    Digest,
    Exclusion,
    Release,
    Statement,
    Subject,
    Times,
    Tree,
    read_statement,
)
from tests.support import mechanisms, trees
from tests.support.statements import as_trained, exclusion, synthetic

COVERED = [bytes([number]) * 32 for number in range(9)]
EXCLUDED = [bytes([100 + number]) * 32 for number in range(5)]
BASE = read_statement(json.dumps(synthetic()["retraining"].statement).encode())[0]
OLD = b"the older statement"
WEIGHTS = synthetic()["gradient_clipping"].weights


def tree(leaves: list[bytes]) -> Tree:
    return Tree(size=len(leaves), root=trees.root(leaves).hex())


def release(
    covered: list[bytes] = COVERED,
    excluded: list[bytes] = EXCLUDED,
    *,
    version: int = 3,
    name: str = "model",
    **counts: int,
) -> Statement:
    """Return a certificate of these commitments, one request and one record each."""
    predicate = BASE.predicate
    assert isinstance(predicate, Release)
    stated = {
        "since_version": 1,
        "requests": len(covered),
        "records": len(covered),
        "excluded_records": len(excluded),
    } | counts
    forgotten = predicate.forgotten.model_copy(
        update=stated | {"covered": tree(covered), "excluded": tree(excluded)}
    )
    model = predicate.model.model_copy(update={"version": version, "name": name})
    return with_predicate(BASE, forgotten=forgotten, model=model)


def with_predicate(statement: Statement, **changes: Any) -> Statement:
    predicate = statement.predicate.model_copy(update=changes)
    return statement.model_copy(update={"predicate": predicate})


def grown(old: list[bytes], new: list[bytes]) -> TreeGrowth:
    proof = trees.proof(len(old), new) if 0 < len(old) < len(new) else []
    return TreeGrowth(len(old), tuple(proof))


def check(
    new: Statement | None = None,
    old: Statement | None = None,
    *,
    covered: tuple[list[bytes], list[bytes]] = (COVERED[:4], COVERED),
    excluded: tuple[list[bytes], list[bytes]] = (EXCLUDED[:2], EXCLUDED),
) -> str:
    growth = Growth(grown(*covered), grown(*excluded))
    old = old or release(covered[0], excluded[0], version=2)
    return check_growth(new or release(covered[1], excluded[1]), old, growth, old_payload=OLD)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 9), (1, 9), (4, 4), (4, 5), (8, 9), (9, 9)])
def test_trees_that_grew(sizes: tuple[int, int]) -> None:
    old, new = (COVERED[:size] for size in sizes)
    assert "accounts for all" in check(covered=(old, new))


@pytest.mark.parametrize(
    ("old", "reason"),
    [
        (COVERED[:4][::-1], "does not begin"),
        ([*COVERED[1:5]], "does not begin"),
        ([*COVERED[:3], EXCLUDED[0]], "does not begin"),
        (EXCLUDED[:4], "does not begin"),
        ([*COVERED, EXCLUDED[0]], "fewer commitments"),
        (COVERED[:3], "no proof from that certificate"),
        ([*COVERED[:8], EXCLUDED[0]], "does not begin"),
    ],
)
def test_trees_with_other_leaves_before(old: list[bytes], reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        check(old=release(old, EXCLUDED[:2], version=2))


def test_a_bundle_without_a_proof_is_refused_unless_nothing_was_added() -> None:
    old = release(COVERED, EXCLUDED, version=2)
    assert "accounts for all" in check_growth(release(), old, None, old_payload=OLD)
    with pytest.raises(VerificationError, match="no proof"):
        check_growth(release(), release(COVERED[:4]), None, old_payload=OLD)


@pytest.mark.parametrize(
    "counts",
    [
        {"records": 3},
        {"requests": 3},
        {"excluded_records": 1},
        {"records": 10},
        {"requests": 10},
        {"excluded_records": 6},
        {"requests": 4},
    ],
)
def test_counts_that_do_not_follow_from_those_before(counts: dict[str, int]) -> None:
    with pytest.raises(VerificationError, match=r"counts do not follow|without a request"):
        check(release(**counts))


def test_an_old_root_with_new_counts_is_refused() -> None:
    for counts in ({"requests": 5}, {"records": 5}):
        with pytest.raises(VerificationError, match=r"counts do not follow|without a request"):
            check(release(COVERED[:4], **counts), covered=(COVERED[:4], COVERED[:4]))


def test_trees_begin_anew_only_with_a_later_version() -> None:
    anew = release(COVERED[:1], [], version=5, since_version=4)
    assert "began anew with version 4" in check(anew)
    for since in (1, 2):
        old = release(COVERED[:4], EXCLUDED[:2], version=3, since_version=3 - since)
        with pytest.raises(VerificationError, match="without a new training"):
            check(release(COVERED[:1], [], since_version=3), old)


def test_another_model_and_a_later_version_are_refused() -> None:
    with pytest.raises(VerificationError, match="another model"):
        check(old=release(COVERED[:4], EXCLUDED[:2], name="other"))
    with pytest.raises(VerificationError, match="later version"):
        check(old=release(COVERED[:4], EXCLUDED[:2], version=4))


def test_of_other_kinds_only_the_trees_that_both_state_are_compared() -> None:
    some = read(exclusion())
    assert isinstance(some.predicate, Exclusion)
    stated = some.predicate.forgotten.model_copy(update={"excluded": tree(EXCLUDED[:2])})
    some = with_predicate(some, forgotten=stated, backbone=None)
    assert "accounts for all" in check(old=some)
    with pytest.raises(VerificationError, match="does not begin"):
        check(old=some, excluded=(EXCLUDED[:2], EXCLUDED[::-1]))
    first = with_predicate(read(as_trained(WEIGHTS)), backbone=None)
    assert "accounts for no record" in check(old=first)


def read(statement: Any) -> Statement:
    return read_statement(json.dumps(statement).encode())[0]


def made_by(
    mechanism: str, *, version: int = 1, before_training: int = 0, covered: int = 2, **changes: Any
) -> Statement:
    """Return a certificate of some records with other parameters of a mechanism."""
    statement = deepcopy(synthetic()[mechanism].statement)
    statement["predicate"]["mechanism"]["parameters"] |= changes
    forgotten = release(COVERED[:covered], EXCLUDED, before_training=before_training).predicate
    assert isinstance(forgotten, Release)
    made = read(statement)
    model = made.predicate.model.model_copy(update={"version": version})
    own = Subject(name="model.safetensors", digest=Digest(sha256=f"{version:064x}"))
    made = made.model_copy(update={"subject": [own]})
    return with_predicate(made, forgotten=forgotten.forgotten, model=model)


def tracked(events: list[dict[str, Any]], *, version: int, **counts: int) -> Statement:
    """Return a certificate of two records whose history these events are."""
    recipe = mechanisms.RELEASED["history"]["recipe"]
    history = {"recipe": recipe, "events": events}
    return made_by("tracked_release", version=version, history=history, **counts)


TRAINED = [{"steps": 40, "noise_std": 0.0}, {"release": 0.05}]
WEAKER = [{"steps": 40, "noise_std": 0.0}, {"release": 0.01}]
RUN = [{"steps": 9, "noise_std": 0.0}, {"release": 0.05}]


def asked(*pairs: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"forget": [list(pair) for pair in pairs]}]


def test_a_history_goes_on_from_the_one_before() -> None:
    old = tracked([*TRAINED, *asked((1, 2))], version=1)
    for events in (
        [*TRAINED, *asked((1, 2))],
        [*TRAINED, *asked((1, 2), (3, 1))],
        [*TRAINED, *asked((1, 3)), *RUN],
    ):
        new = tracked(events, version=1 + (len(events) > 3))
        assert "accounts for all" in check_growth(new, old, None, old_payload=OLD)
    for events in (
        [*WEAKER, *asked((1, 2))],
        [*TRAINED, *asked((2, 2))],
        [*TRAINED, *asked((1, 1), (2, 1))],
        [*TRAINED, *RUN, *asked((1, 2))],
        [*RUN, *asked((1, 2))],
    ):
        new = tracked(events, version=2)
        with pytest.raises(VerificationError, match="does not begin with the older"):
            check_growth(new, old, None, old_payload=OLD)


def test_only_a_new_version_was_trained_again() -> None:
    old = tracked([*TRAINED, *asked((1, 2))], version=2)
    anew = [*RUN, *asked((1, 1))]
    new = tracked(anew, version=3, before_training=1)
    assert "accounts for all" in check_growth(new, old, None, old_payload=OLD)
    with pytest.raises(VerificationError, match="without a new version"):
        check_growth(tracked(anew, version=2, before_training=1), old, None, old_payload=OLD)


def test_the_first_release_s_training_is_that_of_what_comes_after() -> None:
    first = tracked(TRAINED, version=1, covered=0)
    proof = Growth(grown([], COVERED[:2]), None)
    for events, holds in (
        ([*TRAINED, *asked((1, 2)), *RUN], True),
        ([*WEAKER, *asked((1, 2)), *RUN], False),
    ):
        new = tracked(events, version=2)
        if holds:
            assert "accounts for all" in check_growth(new, first, proof, old_payload=OLD)
            continue
        with pytest.raises(VerificationError, match="does not begin with the older"):
            check_growth(new, first, proof, old_payload=OLD)


NONCONVEX = "noisy_gd_nonconvex"


@pytest.mark.parametrize(
    ("mechanism", "changes", "holds"),
    [
        ("dp_sgd", {}, True),
        ("dp_sgd", {"group_size": 9}, True),
        ("dp_sgd", {"noise_multiplier": 12.4}, False),
        ("dp_sgd", {"sampling_rate": 0.1}, False),
        ("dp_sgd", {"steps": 4}, False),
        ("dp_sgd", {"records": 230}, False),
        (NONCONVEX, {"unlearning_steps": 10**6, "request_size": 9, "earlier_steps": 10**8}, True),
        (NONCONVEX, {"noise_std": 1.0}, False),
        (NONCONVEX, {"training_steps": 3 * 10**7}, False),
        (NONCONVEX, {"earlier_steps": 10**7 - 1}, False),
    ],
)
def test_a_training_is_told_as_it_was_before(
    mechanism: str, changes: dict[str, Any], holds: bool
) -> None:
    old, new = made_by(mechanism), made_by(mechanism, version=2, **changes)
    if holds:
        assert "accounts for all" in check_growth(new, old, None, old_payload=OLD)
        return
    with pytest.raises(VerificationError, match="does not begin with the older"):
        check_growth(new, old, None, old_payload=OLD)


def test_a_version_has_one_file() -> None:
    old, later = (made_by("gradient_clipping", version=version) for version in (1, 2))
    other = [Subject(name="model.safetensors", digest=Digest(sha256="ab" * 32))]
    with pytest.raises(VerificationError, match="other weights under the same number"):
        check_growth(old.model_copy(update={"subject": other}), old, None, old_payload=OLD)
    assert "accounts for all" in check_growth(later, old, None, old_payload=OLD)
    with pytest.raises(VerificationError, match="noise was added to nothing"):
        check_growth(later.model_copy(update={"subject": old.subject}), old, None, old_payload=OLD)


@pytest.mark.parametrize("name", ["evaluation", "software", "mechanism"])
def test_all_certificates_of_a_version_tell_the_same_of_its_weights(name: str) -> None:
    old = made_by("gradient_clipping", version=2)
    other = {
        "evaluation": {"held_out_records": 7},
        "software": {"torch": "0"},
        "mechanism": {"tensors": ["another"]},
    }
    section = getattr(old.predicate, name).model_copy(update=other[name])
    with pytest.raises(VerificationError, match="tells otherwise of the same weights"):
        check_growth(with_predicate(old, **{name: section}), old, None, old_payload=OLD)


def test_no_certificate_is_dated_long_before_an_older_one() -> None:
    old, new = (made_by("gradient_clipping", version=version) for version in (1, 2))
    certified_at = datetime.fromisoformat(old.predicate.times.certified_at)
    for earlier_by, holds in ((timedelta(hours=23), True), (timedelta(hours=25), False)):
        moment = (certified_at - earlier_by).isoformat()
        dated = with_predicate(new, times=Times(started_at=moment, certified_at=moment))
        if holds:
            assert "accounts for all" in check_growth(dated, old, None, old_payload=OLD)
            continue
        with pytest.raises(VerificationError, match="dated before the older"):
            check_growth(dated, old, None, old_payload=OLD)


def test_a_model_has_one_backbone() -> None:
    old = made_by("gradient_clipping_public")
    for new in (with_predicate(old, backbone=None), made_by("gradient_clipping", version=2)):
        with pytest.raises(VerificationError, match="another base or backbone"):
            check_growth(new, old, None, old_payload=OLD)


def test_a_version_was_made_in_one_way() -> None:
    clipped = made_by("gradient_clipping", version=2)
    first = with_predicate(read(as_trained(WEIGHTS, version=2)), backbone=None)
    first = first.model_copy(update={"subject": clipped.subject})
    for new, old in ((clipped, first), (first, clipped)):
        with pytest.raises(VerificationError, match="both as it was trained and otherwise"):
            check_growth(new, old, None, old_payload=OLD)
    for new, old in (
        (made_by("gradient_clipping", version=2, noise_std=0.7), clipped),
        (made_by("model_clipping", version=2), clipped),
        (made_by("dp_sgd", version=2), clipped),
    ):
        with pytest.raises(VerificationError, match=r"in another way before|tells otherwise"):
            check_growth(new, old, None, old_payload=OLD)
    trained = made_by("retraining", version=2, before_training=2)  # with noise, which covers later
    covering = made_by("dp_sgd", version=2, before_training=2)
    for new, old in ((clipped, clipped), (covering, trained), (covering, covering)):
        assert "accounts for all" in check_growth(new, old, None, old_payload=OLD)
