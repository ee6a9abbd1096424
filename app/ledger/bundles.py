"""Bundles: a certificate with its place in the log, and with what a request needs to see."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.certificates.bundle import LeafProof, LogProof, RequestProof, bundle_json
from app.certificates.cosignature import WitnessKey
from app.certificates.signing import (
    StatementSigner,
    is_signed,
    payload_of,
    signer_of,
    statement_of,
)
from app.certificates.tables import CertificateRow
from app.certificates.trusted_keys import ed25519_of
from app.domain import multiproof
from app.domain.errors import CorruptLogError, InvalidInputError
from app.domain.states import Basis
from app.ledger import certifying, repository
from app.ledger.certifying import Accounted
from app.log import checkpoints, cosignatures, merkle, signing_keys
from app.log.tables import SigningKeyRow
from app.registry.tables import ModelRow, VersionRow

_ENTRY = text(
    """
    SELECT index, body FROM log_entries
    WHERE kind = 'certificate.issued'
    AND substring(body FROM '"certificate":"([^"]*)"') = :certificate
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
    signer: StatementSigner,
    witnesses: Sequence[WitnessKey] = (),
    since: int | None = None,
    request_id: str | None = None,
) -> dict[str, Any]:
    """Return a certificate's bundle, with a checkpoint by the key in use, as plain JSON values.

    Args:
        session: of the ledger.
        certificate: the certificate.
        signer: signs again what a compromised key has signed.
        witnesses: whose cosignatures of the checkpoint are shown.
        since: size of an older checkpoint; the bundle proves that the log has only grown since.
        request_id: a request of which to show which records the certificate accounts for.

    Raises:
        ConfigurationError: it must be signed again, and the signer's key is not the one in use.
        InvalidInputError: the log was never as large as ``since``.
        CorruptLogError: the log does not hold the certificate.
    """
    found = session.execute(_ENTRY, {"certificate": certificate.id}).one_or_none()
    if found is None:
        raise CorruptLogError("the log does not hold this certificate; run 'expunge log fsck'")
    index, body = found
    return bundle_json(
        envelope=_envelope(session, certificate, signer, index=index),
        log=_log_proof(session, index, body, since=since, witnesses=witnesses),
        request=None if request_id is None else _request_proof(session, certificate, request_id),
    )


def _envelope(
    session: Session, certificate: CertificateRow, signer: StatementSigner, *, index: int
) -> str:
    """Return a certificate's envelope, re-signed if its key was compromised.

    The text is unchanged and must match the log's digest. It must have been signed with that key
    and be in the log before the key's end, so that rows added later are never re-signed.
    """
    signed_by = session.get(SigningKeyRow, signer_of(certificate.envelope))
    if signed_by is None or signed_by.compromised_since is None:
        return certificate.envelope
    signing_keys.require_in_use(session, signer)
    payload = payload_of(certificate.envelope)
    retired_at = session.scalar(_RETIREMENT, {"key": signed_by.id})
    if (
        hashlib.sha256(payload).hexdigest() != certificate.sha256
        or retired_at is None
        or index > retired_at
        or not is_signed(certificate.envelope, ed25519_of(signed_by.pem))
    ):
        raise CorruptLogError("a certificate is not the one recorded; run 'expunge log fsck'")
    return signer.sign_payload(payload)


def _log_proof(
    session: Session,
    index: int,
    body: str,
    *,
    since: int | None,
    witnesses: Sequence[WitnessKey],
) -> LogProof:
    newest = checkpoints.latest(session)
    if since is not None and since > newest.size:
        raise InvalidInputError(f"since: must be at most {newest.size}, the log's size")
    size, note = cosignatures.best_checkpoint(
        session,
        least_size=max(index + 1, since or 0),
        in_use=signing_keys.note_key(session),
        witnesses=witnesses,
    )
    return LogProof(
        entry=body,
        index=index,
        inclusion=tuple(merkle.inclusion_proof(session, index=index, size=size)),
        checkpoint=note,
        old_size=since,
        consistency=()
        if since is None
        else tuple(merkle.consistency_proof(session, old_size=since, new_size=size)),
    )


def _request_proof(
    session: Session, certificate: CertificateRow, request_id: str
) -> RequestProof | None:
    """Return which of a request's records the certificate accounts for.

    None if it cannot be shown, because what the certificate was made from has changed since.
    """
    accounted = _accounted(session, certificate, request_id)
    if not _matches(certificate, accounted):
        return None
    own = set(repository.commitments_of(session, request_id))
    return RequestProof(
        covered=_leaf_proof(accounted.covered, own), excluded=_leaf_proof(accounted.excluded, own)
    )


def _accounted(session: Session, certificate: CertificateRow, request_id: str) -> Accounted:
    if certificate.basis == Basis.EXCLUDED_FROM_TRAINING:
        return certifying.accounted_in(session, request_id)
    model = session.get_one(ModelRow, certificate.model_id)
    version = session.get_one(VersionRow, certificate.version_id)
    return certifying.accounted_for(
        session, model, through_epoch=version.covers_epoch, later_request=request_id
    )


def _matches(certificate: CertificateRow, accounted: Accounted) -> bool:
    stated = statement_of(certificate.envelope)["predicate"].get("forgotten", {})
    coverage = asdict(accounted.coverage())
    del coverage["before_training"]  # a later training of the lineage moves it
    return bool(stated.items() >= coverage.items())


def _leaf_proof(commitments: list[bytes], own: set[bytes]) -> LeafProof | None:
    indices = [index for index, leaf in enumerate(commitments) if leaf in own]
    if not indices:
        return None
    return LeafProof(
        size=len(commitments),
        leaves={index: commitments[index] for index in indices},
        siblings=tuple(multiproof.prove(commitments, indices)),
    )
