"""Checking that certificates and the log's entries about them are one to one."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from securesystemslib.dsse import Envelope
from sqlalchemy import Connection, func, select, text

from app.certificates import strict_json
from app.certificates.tables import CertificateRow

# By pattern and not as JSON: one damaged entry must not end the search.
_UNLOGGED = text(
    """
    SELECT id FROM certificates WHERE NOT EXISTS (
        SELECT FROM log_entries
        WHERE kind = 'certificate.issued'
        AND substring(body FROM '"certificate":"([^"]*)"') = certificates.id
    )
    """
)


class CertificateCheck:
    """Compares certificates with the entries that record them."""

    def __init__(
        self,
        connection: Connection,
        keys: Sequence[Ed25519PublicKey],
        fault: Callable[[str, str], None],
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._fault = fault

    def see(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Check the certificates that these entries record; ``index`` says which entry."""
        if not entries:
            return
        ids = [_id_in(entry) for entry in entries]
        row = CertificateRow
        query = select(row.id, row.model_id, row.version_id, row.basis, row.sha256, row.envelope)
        rows = {r.id: r for r in self._connection.execute(query.where(row.id.in_(ids)))}
        for entry, certificate_id in zip(entries, ids, strict=True):
            where = f"certificate {certificate_id}"
            stored = rows.get(certificate_id)
            if stored is None:
                self._fault(where, f"entry {entry['index']} records it, but it is missing")
                continue
            # Entries of the first releases do not name the version.
            version = entry.get("version", stored.version_id)
            recorded = (entry.get("model"), version, entry.get("basis"), entry.get("sha256"))
            if recorded != (stored.model_id, stored.version_id, stored.basis, stored.sha256):
                self._fault(where, f"it differs from entry {entry['index']}")
            self._check_envelope(where, stored.envelope, stored.sha256)

    def finish(self) -> int:
        """Report certificates without an entry; return how many certificates there are."""
        for certificate_id in self._connection.scalars(_UNLOGGED):
            self._fault(f"certificate {certificate_id}", "no entry records it")
        return self._connection.scalar(select(func.count()).select_from(CertificateRow)) or 0

    def _check_envelope(self, where: str, envelope_json: str, sha256: str) -> None:
        try:
            envelope = Envelope.from_dict(strict_json.loads(envelope_json))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._fault(where, "its envelope cannot be read")
            return
        if hashlib.sha256(envelope.payload).hexdigest() != sha256:
            self._fault(where, "its statement is not the one that was recorded")
        if not self._is_signed(envelope):
            self._fault(where, "none of the service's keys has signed it")

    def _is_signed(self, envelope: Envelope) -> bool:
        for signature in envelope.signatures.values():
            for key in self._keys:
                try:
                    key.verify(bytes.fromhex(signature.signature), envelope.pae())
                except (InvalidSignature, ValueError):
                    continue
                return True
        return False


def _id_in(entry: Mapping[str, Any]) -> str:
    """Return the id that an entry names; a damaged one may name a text that no query accepts."""
    named = entry.get("certificate")
    return named if isinstance(named, str) and named.isascii() and named.isprintable() else ""
