"""Checks a statement's fields against each other."""

from datetime import datetime
from typing import Final

from app.domain.architectures import own_name
from app.domain.errors import VerificationError
from app.domain.merkle import EMPTY_ROOT
from app.domain.states import Basis
from app.evidence.certificates import schema
from app.evidence.certificates.parameters import draws_of, grid_of
from app.planning.mechanisms.mechanism import Claim, Deterministic, Mechanism, Needs

# A lineage is trained and trained again, whose noise may cover later requests.
_FIRST_OF_NEW_TRAINING: Final = 2


def check_consistency(predicate: schema.Predicate, mechanism: Mechanism | None) -> None:
    """Check a predicate's fields against each other, or raise ``VerificationError``."""
    began, ended = (
        datetime.fromisoformat(moment)
        for moment in (predicate.times.started_at, predicate.times.certified_at)
    )
    _require(began <= ended, "certified before it was started")
    recomputable = isinstance(predicate, schema.Release) and predicate.recomputable is not None
    _require(
        (predicate.software.arithmetic is not None)
        == (recomputable or isinstance(mechanism, Deterministic)),
        "its arithmetic is named only where it can be computed again",
    )
    exact = mechanism is not None and mechanism.trains_anew
    _require(exact or not recomputable, "what was drawn as noise cannot be computed again")
    _check_base(predicate, mechanism)
    if isinstance(predicate, schema.AsTrained):
        first = predicate.model.version == 1
        _require(
            first == (predicate.previous_certificate is None),
            "the certificate before it contradicts its version",
        )
        _check_evaluation(predicate.evaluation)
        _check_lack(predicate.evaluation, lacks=False, active=1)
    elif isinstance(predicate, schema.Exclusion):
        forgotten = predicate.forgotten
        _check_since(forgotten, predicate)
        _check_tree(forgotten.excluded)
        _check_leaves(forgotten.leaves, forgotten)
        end = forgotten.first + forgotten.leaves
        _require(end <= forgotten.excluded.size, "it is about commitments that its tree has not")
    elif mechanism is not None:
        _check_version(predicate)
        _check_members(predicate, mechanism)
        _check_forgotten(predicate)
        _check_since_training(predicate, mechanism)
        _check_frame(predicate, mechanism)
        _check_noise(predicate)
        devices, parallelism = predicate.mechanism.devices, predicate.mechanism.parallelism
        _require((devices is None) == (parallelism is None), "devices that did not divide the work")
        _require(devices is None or mechanism.divides, "several devices for what one computes")
        _check_evaluation(predicate.evaluation)


def _check_base(predicate: schema.Predicate, mechanism: Mechanism | None) -> None:
    if predicate.base is None:
        return
    names = predicate.base.tensors
    _require(names == sorted(set(names)), "its base's tensors are not sorted and unique")
    if isinstance(predicate, schema.Release) and mechanism is not None:
        ensemble = mechanism.needs is Needs.ENSEMBLE
        _require(ensemble or mechanism.needs is Needs.ANY_NETWORK, "a head with a base")
        trained = set(predicate.mechanism.tensors)
        if ensemble:  # its base is named as one member does
            trained = set(map(own_name, trained))
        _require(trained.isdisjoint(names), "a tensor of its base was trained")


def _check_version(predicate: schema.Release) -> None:
    first = predicate.model.version == 1
    # A new training begins a new lineage, with no forgotten records.
    begins = first or predicate.forgotten.records == 0
    _require(
        begins == (predicate.basis is Basis.CERTIFIED_RELEASE), "its basis contradicts its version"
    )
    if not first:
        _require(predicate.previous_certificate is not None, "no certificate before it")
    elif predicate.forgotten.requests == 0:
        _require(predicate.previous_certificate is None, "a certificate before the first")


def _check_members(predicate: schema.Release, mechanism: Mechanism) -> None:
    members = predicate.members
    ensemble = mechanism.needs is Needs.ENSEMBLE
    _require((members is not None) == ensemble, "members too many or too few")
    since, version = predicate.forgotten.since_version, predicate.model.version
    stated = [each.member() for each in members or ()]
    _require(
        all(since <= member.since <= version for member in stated),
        "a member was trained in no version of its lineage",
    )
    out = [member for member in stated if not member.is_active]
    _require(
        all(member.since > since for member in out),
        "a member was left out of the version that began its lineage",
    )
    _require(len(out) < len(stated) or not ensemble, "no member is active")
    forgot = predicate.forgotten.records > 0
    _require(forgot or not out, "a member was left out, and no record was forgotten")
    kept = all(member.since == since for member in stated)
    _require(
        not ensemble or not kept or not forgot,
        "records were forgotten, and no member was left out or trained anew",
    )
    _check_lack(
        predicate.evaluation,
        lacks=bool(out) and all(member.trained_in != version for member in stated),
        active=len(stated) - len(out),
    )


def _check_lack(evaluation: schema.Evaluation, *, lacks: bool, active: int) -> None:
    """Check what an evaluation says of a version that lacks members of the one before, or may."""
    _require(lacks or not evaluation.not_measured, "not measured, though no member of it is out")
    _require(
        all(each.members < active for each in evaluation.fewer_members or ()),
        "a score of fewer members, of as many as it has",
    )


def _check_forgotten(predicate: schema.Release) -> None:
    forgotten = predicate.forgotten
    _check_since(forgotten, predicate)
    _require((forgotten.requests == 0) == (forgotten.records == 0), "requests without records")
    _check_tree(forgotten.covered)
    _check_tree(forgotten.excluded)
    _check_leaves(forgotten.covered.size, forgotten)
    excluded, records = forgotten.excluded, forgotten.excluded_records
    _require((excluded.size == 0) == (records == 0), "a tree contradicts its record count")
    _require(records <= excluded.size, "a tree with fewer commitments than records")
    _require(forgotten.before_training <= forgotten.records, "before_training exceeds records")


def _check_since(
    forgotten: schema.Forgotten | schema.Excluded, predicate: schema.Exclusion | schema.Release
) -> None:
    since = forgotten.since_version
    _require(since <= predicate.model.version, "its lineage begins with a later version")


def _check_leaves(count: int, forgotten: schema.Forgotten | schema.Excluded) -> None:
    """Check a number of commitments: each request has one to each record that it names."""
    fits = (
        max(forgotten.requests, forgotten.records)
        <= count
        <= forgotten.requests * forgotten.records
    )
    _require(fits, "its commitments contradict its requests and records")


def _check_tree(tree: schema.Tree) -> None:
    empty = tree.root == EMPTY_ROOT.hex()
    _require((tree.size == 0) == empty, "a root contradicts the size of its tree")


def _check_since_training(predicate: schema.Release, mechanism: Mechanism) -> None:
    """Check that the mechanism accounts for all records that left since these weights' training."""
    forgotten, version = predicate.forgotten, predicate.model.version
    since, anew = forgotten.records - forgotten.before_training, forgotten.before_training > 0
    releases = version - forgotten.since_version + 1
    claim = Claim(
        epsilon=predicate.target.epsilon,
        version=version,
        releases=releases,
        forgotten=since,
        trained_again=anew,
    )
    reason = mechanism.contradiction(claim)
    if reason is not None:
        raise VerificationError("statement", reason)
    if mechanism.trains_anew:
        _require(since == 0, "a record forgotten after its training")
    elif mechanism.counts_from_training:
        # As long as no record has left since, its certificate names the training.
        first = _FIRST_OF_NEW_TRAINING if since > 0 else _FIRST_OF_NEW_TRAINING + 1
        _require(not anew or releases >= first, "trained again too early")
    else:
        _require(not anew, "its guarantee does not depend on the training")


def _check_frame(predicate: schema.Release, mechanism: Mechanism) -> None:
    frame, backbone = predicate.mechanism.frame, predicate.backbone
    _require((frame is not None) == mechanism.in_frame, "a frame too many or too few")
    if frame is None:
        return
    public = backbone is not None and not backbone.frozen
    centred = frame.centre == "public_weights"
    # Where the network freezes all that a backbone has for it, nothing is left to centre there.
    allowed = {public, False} if predicate.base is not None else {public}
    _require(centred in allowed, "its centre is not the backbone")
    given = {frame.public_tensors is not None, frame.public_source is not None}
    _require(given == {centred}, "its centre is not explained")
    if centred:
        _check_public_centre(frame, predicate)


def _check_public_centre(frame: schema.Frame, predicate: schema.Release) -> None:
    source, backbone, names = frame.public_source, predicate.backbone, frame.public_tensors or []
    same = (
        source is not None
        and backbone is not None
        and (source.name, source.sha256) == (backbone.name, backbone.sha256)
    )
    _require(same, "its centre is not the stated backbone")
    _require(len(set(names)) == len(names), "a public tensor is listed twice")
    _require(set(names) <= set(frame.scale), "a public tensor that was not trained")


def _check_noise(predicate: schema.Release) -> None:
    mechanism, noise = predicate.mechanism, predicate.mechanism.noise
    draws = draws_of(mechanism.name, mechanism.parameters, basis=predicate.basis)
    if not draws:
        _require(noise is None, "noise where none is accounted for")
        return
    _require(noise is not None, "no noise where some is accounted for")
    if noise is not None:
        _require(noise.generator in schema.NOISE_GENERATORS, "an unknown noise generator")
        _require(noise.drawn == sum(each.count for each in draws), "its count of noise is wrong")
        _require(noise.grid == grid_of(mechanism.name, draws), "its grid is wrong")


def _check_evaluation(evaluation: schema.Evaluation) -> None:
    _require(evaluation.outside_the_guarantee, "an evaluation that claims to be guaranteed")
    measured = evaluation.held_out_loss is not None
    _require(not (measured and evaluation.not_measured), "figures of what was not measured")
    _require(measured == (evaluation.held_out_records > 0), "figures without held-out records")
    _require(measured or not evaluation.metrics, "metrics without held-out records")
    known = {None, *evaluation.metrics}
    _require(evaluation.headline in known, "a headline that is none of its metrics")
    compared = evaluation.headline is not None and evaluation.higher_is_better is not None
    _require(compared or evaluation.baseline is None, "a baseline of nothing")
    scored = evaluation.headline is not None
    _require(scored or evaluation.fewer_members is None, "scores of members without a metric")


def _require(condition: bool, reason: str) -> None:  # noqa: FBT001
    if not condition:
        raise VerificationError("statement", reason)
