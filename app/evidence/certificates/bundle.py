"""The bundle: all evidence for one certificate, in one JSON file.

    envelope    the certificate, signed (DSSE)
    log         its entry in the transparency log, the proof that the entry is there, and a signed
                checkpoint of the log; optionally a proof that it extends an older checkpoint
    request     optional: which of one forget request's records it covers, with the proof
    growth      optional: that its trees of commitments begin with those of an older certificate

Parsing checks only sizes, depths and encodings; ``verification`` checks the rest.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from securesystemslib.dsse import Envelope

from app.domain import strict_json
from app.domain.architectures import MOST_MEMBERS
from app.domain.errors import VerificationError
from app.domain.ids import member_commitment
from app.domain.merkle import HASH_BYTES

MEDIA_TYPE: Final = "application/vnd.expunge.bundle.v1+json"
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_PROOF: Final = 128
MAX_LEAVES: Final = 200_000
_SECTIONS: Final = {"media_type", "envelope", "log", "request", "growth"}
_MAX_INTEGER: Final = 2**63 - 1

Proof = TypeVar("Proof", "LeafProof", "TreeGrowth")


@dataclass(frozen=True)
class LogProof:
    """A certificate's place in the log: its entry's text, the proofs, and a signed checkpoint."""

    entry: str
    index: int
    inclusion: tuple[bytes, ...]
    checkpoint: str
    old_size: int | None = None
    consistency: tuple[bytes, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        document: dict[str, Any] = {
            "entry": self.entry,
            "index": self.index,
            "inclusion": _to_texts(self.inclusion),
            "checkpoint": self.checkpoint,
        }
        if self.old_size is not None:
            document["old_size"] = self.old_size
            document["consistency"] = _to_texts(self.consistency)
        return document


@dataclass(frozen=True)
class LeafProof:
    """Some commitments of a tree, and of an ensemble's their members, by place, and their proof."""

    leaves: Mapping[int, bytes]
    siblings: tuple[bytes, ...]
    members: Mapping[int, int] | None = None

    @property
    def in_tree(self) -> Mapping[int, bytes]:
        """What the tree has at these places: the commitments, each with its member if any."""
        if self.members is None:
            return self.leaves
        return {
            index: member_commitment(commitment, self.members[index])
            for index, commitment in self.leaves.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        document: dict[str, Any] = {
            "indices": sorted(self.leaves),
            "commitments": _to_texts([self.leaves[index] for index in sorted(self.leaves)]),
            "siblings": _to_texts(self.siblings),
        }
        if self.members is not None:
            document["members"] = [self.members[index] for index in sorted(self.leaves)]
        return document


@dataclass(frozen=True)
class TreeGrowth:
    """The proof that a tree of commitments begins with the ``old_size`` first ones."""

    old_size: int
    hashes: tuple[bytes, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"old_size": self.old_size, "hashes": _to_texts(self.hashes)}


@dataclass(frozen=True)
class ByTree(Generic[Proof]):
    """What is proved of each of a certificate's two trees of commitments, if anything is."""

    covered: Proof | None
    excluded: Proof | None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            name: None if proof is None else proof.to_json() for name, proof in vars(self).items()
        }


RequestProof = ByTree[LeafProof]
"""A certificate's relation to one forget request.

The weights may have learned from the ``covered`` records, never from the ``excluded`` ones.
"""

Growth = ByTree[TreeGrowth]
"""How a certificate's trees grew since an older one of the same lineage."""


@dataclass(frozen=True)
class Bundle:
    """A parsed, unverified bundle."""

    envelope: Envelope
    log: LogProof
    request: RequestProof | None
    growth: Growth | None


def bundle_json(
    *,
    envelope: str,
    log: LogProof,
    request: RequestProof | None = None,
    growth: Growth | None = None,
) -> dict[str, Any]:
    """Return a bundle as plain JSON values; ``envelope`` is the DSSE envelope's JSON text."""
    document = {
        "media_type": MEDIA_TYPE,
        "envelope": strict_json.loads(envelope),
        "log": log.to_json(),
    }
    if request is not None:
        document["request"] = request.to_json()
    if growth is not None:
        document["growth"] = growth.to_json()
    return document


def read_bundle(content: bytes) -> Bundle:
    """Parse a bundle, or raise ``VerificationError``."""
    if len(content) > MAX_BYTES:
        raise VerificationError("bundle", f"larger than {MAX_BYTES} bytes")
    try:
        document = strict_json.loads(content)
        _require(set(document) <= _SECTIONS, "an unknown field")
        _require(document["media_type"] == MEDIA_TYPE, "an unknown media type")
        # from_dict consumes it. Base64 has spare bits and skips unknown characters, so only the
        # canonical form is accepted.
        envelope = Envelope.from_dict(json.loads(json.dumps(document["envelope"])))
        _require(len(envelope.signatures) == 1, "it must have one signature")
        as_signed = document["envelope"] == envelope.to_dict()
        _require(as_signed, "its envelope is not in the form that was signed")
        return Bundle(
            envelope=envelope,
            log=read_log_proof(document["log"]),
            request=_by_tree(document.get("request"), _leaves, "request"),
            growth=_by_tree(document.get("growth"), _tree_growth, "growth"),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise VerificationError("bundle", "not a bundle") from error


def read_log_proof(document: Mapping[str, Any]) -> LogProof:
    """Parse an entry's place in the log, or raise one of Python's errors of parsing."""
    proof = LogProof(
        entry=_text(document["entry"]),
        index=_integer(document["index"]),
        inclusion=_hashes(document["inclusion"], most=MAX_PROOF),
        checkpoint=_text(document["checkpoint"]),
        old_size=_integer(document["old_size"]) if "old_size" in document else None,
        consistency=_hashes(document.get("consistency", []), most=MAX_PROOF),
    )
    _require(proof.to_json() == document, "its log section is not in the form that was written")
    return proof


def _by_tree(
    document: Mapping[str, Any] | None, read: Callable[[Mapping[str, Any]], Proof], section: str
) -> ByTree[Proof] | None:
    if document is None:
        return None
    parts = (document["covered"], document["excluded"])
    proof = ByTree(*(None if part is None else read(part) for part in parts))
    same = proof.to_json() == document
    _require(same, f"its {section} section is not in the form that was written")
    return proof


def _leaves(document: Mapping[str, Any]) -> LeafProof:
    indices = [_integer(index) for index in document["indices"]]
    commitments = _hashes(document["commitments"], most=MAX_LEAVES)
    members = None
    if document.get("members") is not None:
        members = dict(zip(indices, map(_integer, document["members"]), strict=True))
        fits = all(member < MOST_MEMBERS for member in members.values())
        _require(fits, "no ensemble has so many members")
    return LeafProof(
        leaves=dict(zip(indices, commitments, strict=True)),
        siblings=_hashes(document["siblings"], most=MAX_LEAVES * 64),
        members=members,
    )


def _tree_growth(document: Mapping[str, Any]) -> TreeGrowth:
    return TreeGrowth(
        old_size=_integer(document["old_size"]),
        hashes=_hashes(document["hashes"], most=MAX_PROOF),
    )


def _hashes(texts: Any, *, most: int) -> tuple[bytes, ...]:  # noqa: ANN401
    _require(isinstance(texts, list) and len(texts) <= most, "a proof is too long")
    try:
        hashes = tuple(base64.b64decode(text, validate=True) for text in texts)
    except binascii.Error as error:
        raise VerificationError("bundle", "a hash is not in base64") from error
    _require(all(len(hashed) == HASH_BYTES for hashed in hashes), "a hash has the wrong length")
    return hashes


def _to_texts(hashes: Sequence[bytes]) -> list[str]:
    return [base64.b64encode(hashed).decode() for hashed in hashes]


def _text(value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # JSON can hold a lone surrogate, which is not text
    return value


def _integer(value: Any) -> int:  # noqa: ANN401
    if type(value) is not int or not 0 <= value <= _MAX_INTEGER:
        raise TypeError
    return value


def _require(condition: bool, reason: str) -> None:  # noqa: FBT001
    if not condition:
        raise VerificationError("bundle", reason)
