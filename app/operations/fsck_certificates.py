"""Checks that the log's entries about certificates have these, signed by a key then in use."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from securesystemslib.dsse import Envelope
from sqlalchemy import Connection, func, select

from app.domain import strict_json
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.trusted_keys import TrustedKey
from app.registry.tables import VersionRow

_RETIRED = "key.retired"
KINDS = frozenset({"certificate.issued", _RETIRED})
"""The kinds of entries that are checked."""


class CertificateCheck:
    """Compares certificates with the entries that record them, and with their keys' retirement."""

    def __init__(
        self,
        connection: Connection,
        keys: Sequence[Ed25519PublicKey],
        fault: Callable[[str, str], None],
    ) -> None:
        self._connection = connection
        self._keys = {TrustedKey(key).id: key for key in keys}
        self._retired_at: dict[str, int] = {}
        self._fault = fault

    def see(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Check the certificates that these entries record; ``index`` is the entry's index."""
        for entry in entries:
            if entry["kind"] == _RETIRED:
                self._retired_at.setdefault(str(entry.get("key")), entry["index"])
        entries = [entry for entry in entries if entry["kind"] != _RETIRED]
        if not entries:
            return
        ids = [_id_in(entry) for entry in entries]
        query = select(*CertificateRow.__table__.columns).where(CertificateRow.id.in_(ids))
        rows = {row.id: row for row in self._connection.execute(query)}
        members = self._members_of(row.version_id for row in rows.values())
        for entry, certificate_id in zip(entries, ids, strict=True):
            where = f"certificate {certificate_id}"
            stored = rows.get(certificate_id)
            if stored is None:
                self._fault(where, f"entry {entry['index']} records it, but it is missing")
                continue
            self._check_envelope(
                where,
                entry["index"],
                stored.envelope,
                entry.get("sha256"),
                members=members.get(stored.version_id),
            )

    def count(self) -> int:
        """Return how many certificates there are."""
        return self._connection.scalar(select(func.count()).select_from(CertificateRow)) or 0

    def _members_of(self, versions: Iterable[str]) -> dict[str, Any]:
        """Return what versions say of an ensemble's members."""
        query = select(VersionRow.id, VersionRow.members).where(VersionRow.id.in_(set(versions)))
        return {row.id: row.members for row in self._connection.execute(query)}

    def _check_envelope(
        self, where: str, index: int, envelope_json: str, sha256: object, *, members: object
    ) -> None:
        try:
            envelope = Envelope.from_dict(strict_json.loads(envelope_json))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._fault(where, "its envelope cannot be read")
            return
        if hashlib.sha256(envelope.payload).hexdigest() != sha256:
            self._fault(where, "its statement is not the one that was recorded")
        elif _states_other_members(envelope.payload, members):
            self._fault(where, "its version names other members than it does")
        signer = self._signer(envelope)
        if signer is None:
            self._fault(where, "none of the service's keys has signed it")
        # By position, not by time: the writer of an entry may choose its time.
        elif index > self._retired_at.get(signer, index):
            self._fault(where, f"entry {index} records it, after its signing key was retired")

    def _signer(self, envelope: Envelope) -> str | None:
        for key_id, signature in envelope.signatures.items():
            try:
                self._keys[key_id].verify(bytes.fromhex(signature.signature), envelope.pae())
            except (KeyError, InvalidSignature, ValueError):
                continue
            return str(key_id)
        return None


def _states_other_members(payload: bytes, members: object) -> bool:
    """Return whether a statement about a mechanism's result differs from its version's members."""
    try:
        predicate = strict_json.loads(payload)["predicate"]
        return "mechanism" in predicate and predicate.get("members") != members
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return True


def _id_in(entry: Mapping[str, Any]) -> str:
    """Return the id in an entry; a damaged entry may hold text that no query accepts."""
    named = entry.get("certificate")
    return named if isinstance(named, str) and named.isascii() and named.isprintable() else ""
