"""Checks a statement's fields against each other."""

from datetime import datetime
from typing import Final

from app.certificates.membership_attack import check_audit
from app.certificates.noise import draws_of, grid_of
from app.certificates.schema import (
    AsTrained,
    Evaluation,
    Exclusion,
    Forgotten,
    Frame,
    Predicate,
    Release,
)
from app.domain.errors import VerificationError
from app.domain.merkle import EMPTY_ROOT
from app.domain.noise_generators import KNOWN
from app.domain.states import Basis
from app.planning.mechanisms.mechanism import Claim, Mechanism

# A lineage is trained (version 1) and trained again (2) before it can unlearn from that (3).
_FIRST_AFTER_NEW_TRAINING: Final = 3


def check_consistency(predicate: Predicate, mechanism: Mechanism | None) -> None:
    """Check a predicate's fields against each other.

    Args:
        predicate: of the right form.
        mechanism: with its parameters, if it has one.

    Raises:
        VerificationError: two fields contradict each other.
    """
    began, ended = (
        datetime.fromisoformat(moment)
        for moment in (predicate.times.started_at, predicate.times.certified_at)
    )
    _require(began <= ended, "certified before it was started")
    if isinstance(predicate, AsTrained):
        _require(predicate.model.version == 1, "only a first version is released as trained")
        _check_evaluation(predicate.evaluation, forgotten=0)
    elif isinstance(predicate, Exclusion):
        _check_exclusion(predicate.forgotten)
    elif mechanism is not None:
        _check_version(predicate)
        _check_forgotten(predicate.forgotten)
        _check_since_training(predicate, mechanism)
        _check_frame(predicate, mechanism)
        _check_noise(predicate)
        _check_evaluation(predicate.evaluation, forgotten=predicate.forgotten.records)


def _check_version(predicate: Release) -> None:
    first = predicate.model.version == 1
    # After a restored backup a lineage may begin again, with no forgotten records.
    begins = first or predicate.forgotten.records == 0
    _require(
        begins == (predicate.basis is Basis.CERTIFIED_RELEASE), "its basis contradicts its version"
    )
    if not first:
        _require(predicate.previous_certificate is not None, "no certificate before it")
    elif predicate.forgotten.requests == 0:
        _require(predicate.previous_certificate is None, "a certificate before the first")


def _check_forgotten(forgotten: Forgotten) -> None:
    _require((forgotten.requests == 0) == (forgotten.records == 0), "requests without records")
    _check_root(forgotten.records, forgotten.commitments_root)
    _check_root(forgotten.excluded_records, forgotten.excluded_root)
    _require(forgotten.before_training <= forgotten.records, "before_training exceeds records")


def _check_exclusion(forgotten: Forgotten) -> None:
    _require(forgotten.requests == 1 and forgotten.records >= 1, "an exclusion is of one request")
    _require(forgotten.excluded_records == forgotten.before_training == 0, "an exclusion of others")
    _check_root(forgotten.records, forgotten.commitments_root)
    _check_root(0, forgotten.excluded_root)


def _check_root(count: int, root: str) -> None:
    _require((count == 0) == (root == EMPTY_ROOT.hex()), "a root contradicts its record count")


def _check_since_training(predicate: Release, mechanism: Mechanism) -> None:
    """Check that the mechanism accounts for all records that left since these weights' training."""
    forgotten, version = predicate.forgotten, predicate.model.version
    since, anew = forgotten.records - forgotten.before_training, forgotten.before_training > 0
    claim = Claim(
        epsilon=predicate.target.epsilon, version=version, forgotten=since, trained_again=anew
    )
    reason = mechanism.contradiction(claim)
    if reason is not None:
        raise VerificationError("statement", reason)
    if mechanism.trains_anew:
        _require(since == 0, "a record forgotten after its training")
    elif mechanism.counts_from_training:
        _require(not anew or version >= _FIRST_AFTER_NEW_TRAINING, "trained again too early")
    else:
        _require(not anew, "its guarantee does not depend on the training")


def _check_frame(predicate: Release, mechanism: Mechanism) -> None:
    """Check where the centre came from."""
    frame, backbone = predicate.mechanism.frame, predicate.backbone
    _require((frame is not None) == mechanism.in_frame, "a frame too many or too few")
    if frame is None:
        return
    public = backbone is not None and not backbone.frozen
    _require((frame.centre == "public_weights") == public, "its centre is not the backbone")
    given = {frame.public_tensors is not None, frame.public_source is not None}
    _require(given == {public}, "its centre is not explained")
    if public:
        _check_public_centre(frame, predicate)


def _check_public_centre(frame: Frame, predicate: Release) -> None:
    source, backbone, names = frame.public_source, predicate.backbone, frame.public_tensors or []
    same = (
        source is not None
        and backbone is not None
        and (source.name, source.sha256) == (backbone.name, backbone.sha256)
    )
    _require(same, "its centre is not the stated backbone")
    _require(len(set(names)) == len(names), "a public tensor is listed twice")
    _require(set(names) <= set(frame.scale), "a public tensor that was not trained")


def _check_noise(predicate: Release) -> None:
    mechanism, noise = predicate.mechanism, predicate.mechanism.noise
    draws = draws_of(mechanism.name, mechanism.parameters, basis=predicate.basis)
    if not draws:
        _require(noise is None, "noise where none is accounted for")
        return
    _require(noise is not None, "no noise where some is accounted for")
    if noise is not None:
        _require(noise.generator in KNOWN, "an unknown noise generator")
        _require(noise.drawn == sum(each.count for each in draws), "its count of noise is wrong")
        _require(noise.grid == grid_of(mechanism.name, draws), "its grid is wrong")


def _check_evaluation(evaluation: Evaluation, *, forgotten: int) -> None:
    _require(evaluation.outside_the_guarantee, "an evaluation that claims to be guaranteed")
    measured = {evaluation.held_out_accuracy is None, evaluation.held_out_loss is None}
    _require(measured == {evaluation.held_out_records == 0}, "figures without held-out records")
    if evaluation.audit is not None:
        check_audit(evaluation.audit, forgotten=forgotten, held_out=evaluation.held_out_records)


def _require(condition: bool, reason: str) -> None:  # noqa: FBT001
    if not condition:
        raise VerificationError("statement", reason)
