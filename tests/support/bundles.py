"""Bundles made by hand, with a small log of their own."""

import hashlib
import json
from typing import Any

from securesystemslib.dsse import Envelope

from app.evidence.certificates.bundle import LogProof, RequestProof, bundle_json
from app.evidence.certificates.note import Checkpoint
from app.evidence.certificates.signing import PAYLOAD_TYPE, StatementSigner
from tests.support import trees

ORIGIN = "expunge/test"
# Later than every certificate that tests make.
RECORDED_AT = "2100-01-01T00:00:00.000000+00:00"


class SmallLog:
    """Some entries, among them those about the certificates that are put into bundles."""

    def __init__(self, signer: StatementSigner, *, others: int = 5) -> None:
        self.signer = signer
        self.origin = ORIGIN
        self.entries = [f'{{"kind":"other","number":{number}}}' for number in range(others)]

    def append(self, payload: bytes, **facts: str) -> int:
        """Record a certificate; return the entry's index."""
        facts = {
            "kind": "certificate.issued",
            "sha256": hashlib.sha256(payload).hexdigest(),
            "basis": basis_of(payload),
            "recorded_at": RECORDED_AT,
        } | facts
        self.entries.append(json.dumps(facts, sort_keys=True, separators=(",", ":")))
        return len(self.entries) - 1

    def grow(self, count: int) -> None:
        """Append entries about other things."""
        self.entries += [f'{{"kind":"later","number":{number}}}' for number in range(count)]

    def leaves(self) -> list[bytes]:
        """The entries as they are hashed."""
        return [entry.encode() for entry in self.entries]

    def checkpoint(self, *, size: int | None = None, signer: StatementSigner | None = None) -> str:
        """Sign the first ``size`` entries, by default all."""
        leaves = self.leaves()[:size]
        text = Checkpoint(self.origin, len(leaves), trees.root(leaves)).text()
        return (signer or self.signer).sign_note(text, name=self.origin)

    def proof(self, index: int, *, old_size: int | None = None) -> LogProof:
        """Prove an entry, by a tree that is built from its definition."""
        leaves = self.leaves()
        old = () if old_size in (None, 0, len(leaves)) else trees.proof(old_size, leaves)
        return LogProof(
            entry=self.entries[index],
            index=index,
            inclusion=tuple(trees.path(index, leaves)),
            checkpoint=self.checkpoint(),
            old_size=old_size,
            consistency=tuple(old),
        )


def basis_of(payload: bytes) -> str:
    """Return the basis that a payload states, whatever it is."""
    try:
        return str(json.loads(payload)["predicate"]["basis"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "none"


def signed_payload(
    payload: bytes,
    signer: StatementSigner,
    *,
    request: RequestProof | None = None,
    others: int = 5,
    **facts: str,
) -> dict[str, Any]:
    """Return the bundle of a payload, whatever it says, with ``facts`` in its log entry."""
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(signer._signer)
    log = SmallLog(signer, others=others)
    index = log.append(payload, **facts)
    log.grow(min(others, 3))
    return bundle_json(
        envelope=json.dumps(envelope.to_dict()), log=log.proof(index), request=request
    )
