"""Bundles: a certificate with its place in the log, and with what a request needs to see."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.domain.errors import CorruptLogError, InvalidInputError
from app.domain.ids import member_commitment
from app.domain.merkle import consistency_ranges, inclusion_ranges, leaf_hash, sibling_ranges
from app.evidence.certificates import signing
from app.evidence.certificates.bundle import (
    Growth,
    LeafProof,
    LogProof,
    RequestProof,
    TreeGrowth,
    bundle_json,
)
from app.evidence.certificates.note import WitnessKey, origin_of
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.trusted_keys import TrustedKey, TrustedKeys, ed25519_of
from app.evidence.certificates.verification import check_place
from app.evidence.log import checkpoints, cosignatures, signing_keys, trees
from app.evidence.log.tables import SigningKeyRow
from app.ledger.certificates import accounts
from app.ledger.certificates.accounts import Lineage, places_of, tree_names
from app.registry.tables import ModelRow, VersionRow
from app.runtime.failpoints import reach

_ENTRY = text(
    """
    SELECT entry.index, entry.body, signed_by.compromised_since IS NOT NULL
    FROM log_entries AS entry LEFT JOIN signing_keys AS signed_by ON signed_by.id = :signer
    WHERE entry.kind = 'certificate.issued'
    AND substring(entry.body FROM '"certificate":"([^"]*)"') = :certificate
    """
)
_RETIREMENT = text(
    """
    SELECT min(index) FROM log_entries
    WHERE kind = 'key.retired' AND substring(body FROM '"key":"([^"]*)"') = :key
    """
)


def bundle_of(
    session: Session,
    certificate: CertificateRow,
    *,
    signer: signing.StatementSigner,
    witnesses: Sequence[WitnessKey] = (),
    since: int | None = None,
    request_id: str | None = None,
    previous: CertificateRow | None = None,
) -> dict[str, Any]:
    """Return a certificate's bundle, with a checkpoint by the key in use, as plain JSON values.

    ``signer`` signs again what a compromised key has signed. The log is proved to have only grown
    since its size ``since``; of a request, which records the certificate accounts for; of the
    ``previous`` certificate, that all that it accounts for is among it.

    Raises:
        ConfigurationError: it must be signed again, and the signer's key is not the one in use.
        InvalidInputError: the log was never as large as ``since``, or ``previous`` is not an older
            certificate of the model.
        CorruptLogError: the log does not hold the certificate.
    """
    envelope = certificate.envelope
    wanted = {"certificate": certificate.id, "signer": signing.signer_of(envelope)}
    found = session.execute(_ENTRY, wanted).one_or_none()
    if found is None:
        raise CorruptLogError("the log does not hold this certificate; run 'expunge log fsck'")
    index, body, is_compromised = found
    if is_compromised:
        envelope = _signed_again(session, certificate, signer, index=index)
    return bundle_json(
        envelope=envelope,
        log=log_proof(session, index, body, since=since, witnesses=witnesses),
        request=None if request_id is None else _request_proof(session, certificate, request_id),
        growth=_growth(session, certificate, previous),
    )


def require_place(
    session: Session, certificate: CertificateRow, *, signer: signing.StatementSigner
) -> None:
    """Check a new certificate's signature and its place in the log, as verifiers do.

    Raises:
        VerificationError: with the first step that failed.
    """
    bundle = bundle_of(session, certificate, signer=signer)
    origin = origin_of(bundle["log"]["checkpoint"].encode())
    trusted = TrustedKeys(origin, (TrustedKey(signer.public_key),))
    check_place(bundle=json.dumps(bundle).encode(), trusted=trusted.to_bytes())
    reach("before_answer_commit")


def _signed_again(
    session: Session, certificate: CertificateRow, signer: signing.StatementSigner, *, index: int
) -> str:
    """Return a certificate's envelope, re-signed because its key was compromised.

    The text is unchanged and must match the log's digest. It must have been signed with that key
    and be in the log before the key's end, so that rows added later are never re-signed.
    """
    signed_by = session.get_one(SigningKeyRow, signing.signer_of(certificate.envelope))
    signing_keys.require_in_use(session, signer)
    payload = signing.payload_of(certificate.envelope)
    retired_at = session.scalar(_RETIREMENT, {"key": signed_by.id})
    if (
        hashlib.sha256(payload).hexdigest() != certificate.sha256
        or retired_at is None
        or index > retired_at
        or not signing.is_signed(certificate.envelope, ed25519_of(signed_by.pem))
    ):
        raise CorruptLogError("a certificate is not the one recorded; run 'expunge log fsck'")
    return signer.sign_payload(payload)


def log_proof(
    session: Session,
    index: int,
    body: str,
    *,
    since: int | None = None,
    witnesses: Sequence[WitnessKey] = (),
) -> LogProof:
    """Return an entry's place in the log, as of a signed checkpoint."""
    if since is not None and since > (signed := checkpoints.latest(session).size):
        raise InvalidInputError(f"since: must be at most {signed}, the log's size")
    size, note = cosignatures.best_checkpoint(
        session,
        least_size=max(index + 1, since or 0),
        witnesses=witnesses,
    )
    return LogProof(
        entry=body,
        index=index,
        inclusion=tuple(trees.range_roots(session, trees.LOG, inclusion_ranges(index, size))),
        checkpoint=note,
        old_size=since,
        consistency=()
        if since is None
        else tuple(trees.consistency_proof(session, old_size=since, new_size=size)),
    )


def _request_proof(
    session: Session, certificate: CertificateRow, request_id: str
) -> RequestProof | None:
    """Return which of a request's records the certificate accounts for; None if it has none."""
    stated = _stated(certificate)
    if not stated:
        return None
    key = (certificate.model_id, stated["since_version"])
    places, (covered, excluded) = places_of(session, key, request_id), tree_names(key)
    version = session.get_one(VersionRow, certificate.version_id)
    lineage = Lineage.of(session.get_one(ModelRow, certificate.model_id), version)
    named = accounts.named_of(session, request_id)
    left_out = {leaf_hash(each.commitment): (each.commitment, None) for each in named}
    learned: Mapping[bytes, tuple[bytes, int | None]] = left_out
    if lineage.membership.members is not None:
        members = [(each.commitment, lineage.member_of(each)) for each in named]
        learned = {leaf_hash(member_commitment(*each)): each for each in members}
    return RequestProof(
        covered=_leaf_proof(session, covered, stated.get("covered"), places.covered, learned),
        excluded=_leaf_proof(session, excluded, stated["excluded"], places.excluded, left_out),
    )


def _growth(
    session: Session, certificate: CertificateRow, previous: CertificateRow | None
) -> Growth | None:
    """Prove that a certificate's trees begin with those of an older one; None if it has others."""
    if previous is None:
        return None
    if previous.model_id != certificate.model_id or previous.number > certificate.number:
        raise InvalidInputError("previous: must be an older certificate of the same model")
    old = _stated(previous)
    new = _stated(certificate)
    if not old or not new or old["since_version"] != new["since_version"]:
        return None
    covered, excluded = tree_names((certificate.model_id, new["since_version"]))
    return Growth(
        covered=_tree_growth(session, covered, old.get("covered"), new.get("covered")),
        excluded=_tree_growth(session, excluded, old["excluded"], new["excluded"]),
    )


def _tree_growth(
    session: Session, tree: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> TreeGrowth | None:
    if old is None or new is None:
        return None
    ranges = consistency_ranges(old["size"], new["size"]) if old["size"] else []
    return TreeGrowth(old["size"], tuple(trees.range_roots(session, tree, ranges)))


def _stated(certificate: CertificateRow) -> Mapping[str, Any]:
    """Return what a certificate states of forgotten records; nothing if it accounts for none."""
    stated: Mapping[str, Any] = signing.statement_of(certificate.envelope)["predicate"].get(
        "forgotten", {}
    )
    return stated


def _leaf_proof(
    session: Session,
    tree: str,
    stated: Mapping[str, Any] | None,
    places: range,
    own: Mapping[bytes, tuple[bytes, int | None]],
) -> LeafProof | None:
    """Prove a request's leaves in a tree as a certificate states it, if they are in it.

    ``own`` are its commitments by leaf, each with the member of an ensemble that is part of it.
    """
    if stated is None or not places or places.stop > stated["size"]:
        return None
    hashes = trees.read(session, [(tree, 0, place) for place in places])
    ranges = sibling_ranges(places, stated["size"])
    leaves = {place: own[hashes[tree, 0, place]] for place in places}
    members = {place: member for place, (_, member) in leaves.items() if member is not None}
    return LeafProof(
        leaves={place: commitment for place, (commitment, _) in leaves.items()},
        siblings=tuple(trees.range_roots(session, tree, ranges)),
        members=members or None,
    )
