"""Checks that the trees of a certificate begin with those of an older one of the same model."""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from app.domain import merkle
from app.domain.architectures import own_name
from app.domain.errors import ProofError, VerificationError
from app.evidence.certificates.bundle import Growth, TreeGrowth
from app.evidence.certificates.parameters import read_parameters
from app.evidence.certificates.schema import AsTrained, Forgotten, Release, Statement, Tree
from app.evidence.certificates.tensors import TREES

_TRAINED_BETWEEN: Final = 2
"""How many versions later a member may be out again: one between has to have trained it."""
_OF_WEIGHTS: Final[Mapping[str, Any]] = {
    "evaluation": True,
    "software": True,
    "mechanism": {"frame", "tensors"},
}
"""What a certificate tells of its version's weights, however many requests it accounts for."""
_OUT_OF_ORDER: Final = timedelta(days=1)
"""How much earlier the later of two certificates may be dated: a clock may have been set back."""


def check_growth(
    statement: Statement, older: Statement, growth: Growth | None, *, old_payload: bytes
) -> str:
    """Check that a certificate takes nothing back of an older one; return this in words.

    The commitments of the older one have to stand where they stood, and no count may fall or rise
    without them. Both start anew with a new training of the model, or an upload. One version has
    one weight file, of which all certificates tell the same, and was released in one way.
    """
    new, old = statement.predicate, older.predicate
    if old.model.name != new.model.name:
        raise _refusal("the older certificate is of another model")
    if old.model.version > new.model.version:
        raise _refusal("the older certificate is of a later version")
    last = hashlib.sha256(old_payload).hexdigest() == new.previous_certificate
    which = "the certificate before it" if last else "an older certificate"
    if (old.base, old.backbone) != (new.base, new.backbone):
        raise _refusal("its network stands on another base or backbone than before")
    _check_weights(older, statement)
    began, ended = (datetime.fromisoformat(each.times.certified_at) for each in (old, new))
    if began - ended > _OUT_OF_ORDER:
        raise _refusal("it is dated before the older certificate")
    if isinstance(old, AsTrained) or isinstance(new, AsTrained):
        return f"{which} states other facts: one of the two accounts for no record"
    before, after = old.forgotten, new.forgotten
    if before.since_version != after.since_version:
        if not old.model.version < after.since_version:
            raise _refusal("its trees began anew without a new training")
        return f"its trees began anew with version {after.since_version}, after {which}"
    growth = growth or Growth(covered=None, excluded=None)
    _check_tree(before.excluded, after.excluded, growth.excluded)
    if isinstance(before, Forgotten) and isinstance(after, Forgotten):
        _check_tree(before.covered, after.covered, growth.covered)
        _check_counts(before, after)
    if isinstance(old, Release) and isinstance(new, Release):
        _check_training(old, new)
        _check_members(old, new)
    return f"it accounts for all that {which} accounts for"


def _refusal(reason: str) -> VerificationError:
    return VerificationError("previous", reason)


def _check_weights(older: Statement, statement: Statement) -> None:
    """Check that a version has weights of its own, which all its certificates tell the same of."""
    old, new, same = older.predicate, statement.predicate, older.subject == statement.subject
    if old.model.version < new.model.version:
        if same and isinstance(new, Release) and new.mechanism.noise is not None:
            raise _refusal("its noise was added to nothing: these are the older version's weights")
        return
    if not same:
        raise _refusal("the older certificate is of other weights under the same number")
    if {type(old), type(new)} == {AsTrained, Release}:
        raise _refusal("its version was released both as it was trained and otherwise")
    released = (each for each in (old, new) if isinstance(each, Release))
    if len({each.model_dump_json(include=_OF_WEIGHTS) for each in released}) > 1:
        raise _refusal("the older certificate tells otherwise of the same weights")


def _check_tree(old: Tree, new: Tree, growth: TreeGrowth | None) -> None:
    if old.size > new.size:
        raise _refusal("it has fewer commitments than the older certificate")
    proven = growth is not None and growth.old_size == old.size
    if 0 < old.size < new.size and not proven:
        raise _refusal("the bundle has no proof from that certificate on: download one that has")
    try:
        merkle.verify_consistency(
            old_size=old.size,
            old_root=bytes.fromhex(old.root),
            new_size=new.size,
            new_root=bytes.fromhex(new.root),
            proof=growth.hashes if growth is not None and 0 < old.size < new.size else (),
        )
    except ProofError as error:
        raise _refusal(str(error)) from error


def _check_counts(old: Forgotten, new: Forgotten) -> None:
    """Check that each count grew by no more than commitments were added that could be new."""
    covered, excluded = (new.covered.size - old.covered.size, new.excluded.size - old.excluded.size)
    grown = (
        (new.requests - old.requests, covered),
        (new.records - old.records, covered),
        (new.excluded_records - old.excluded_records, excluded),
    )
    if not all(0 <= count <= most for count, most in grown):
        raise _refusal("its counts do not follow from those before")
    if (new.requests == old.requests) != (covered == 0):
        raise _refusal("commitments were added without a request")


def _check_members(old: Release, new: Release) -> None:
    """Check that members are unchanged unless they were left out or trained anew since.

    Where more records are forgotten, some were: or some were out, which learned of them alone.
    """
    before, after = old.members or [], new.members or []
    if len(before) != len(after):
        raise _refusal("its ensemble has another number of members")
    # Without some of its records, what is grown and not drawn may come out as it was.
    drawn = not {*TREES} <= {own_name(name) for name in new.mechanism.tensors}
    for one, other in zip((m.member() for m in before), (m.member() for m in after), strict=True):
        kept = one.is_active == other.is_active and other.since == one.since
        if not kept and other.since <= old.model.version:
            what = "training is" if other.is_active else "absence is"
            raise _refusal(f"a member's {what} older than it was")
        out_twice = not (kept or one.is_active or other.is_active)
        if out_twice and other.since < old.model.version + _TRAINED_BETWEEN:
            raise _refusal("a member was left out again, and no version between had trained it")
        wrong = one.sha256 != other.sha256 if kept else drawn and one.sha256 == other.sha256
        if wrong and one.is_active and other.is_active:
            raise _refusal("a member was changed without a training, or not by it")
    grown = new.forgotten.records > old.forgotten.records
    nowhere = all(member.out_since is None for member in before)
    if after and grown and nowhere and before == after:
        raise _refusal("records were forgotten, and no member was left out or trained anew")


def _check_training(old: Release, new: Release) -> None:
    """Check that weights are trained again only for a new version, and keep their history else.

    A training that is the answer to a request leaves out a record that was there before. So where
    none was added that left before the training, the weights go on from the same one.
    """
    before, after = (
        read_parameters(each.mechanism.name, each.mechanism.parameters) for each in (old, new)
    )
    trained_again = old.forgotten.before_training != new.forgotten.before_training
    if old.model.version == new.model.version:
        if trained_again:
            raise _refusal("it was trained again without a new version")
        # Return whether the release that one mechanism made may cover later requests as the other.
        if before != after and not (
            after.covers_later and (before.name == after.name or before.trains_anew)
        ):
            raise _refusal("its version was made in another way before")
    if not trained_again and not after.goes_on_from(before):
        raise _refusal("its history does not begin with the older certificate's")
