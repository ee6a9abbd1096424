"""Receipts: they let a requester find their own records under a certificate's commitments.

The answer to a forget request carries a salt. With the salt and the requested ids, anyone can
compute the commitments to the records; without the salt they look random.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal

from app.domain import merkle, strict_json
from app.domain.errors import ProofError, VerificationError
from app.domain.ids import SALT_BYTES, commitment, normal_id
from app.evidence.certificates.bundle import LeafProof, RequestProof
from app.evidence.certificates.schema import (
    Excluded,
    Exclusion,
    Forgotten,
    MemberSection,
    Predicate,
    Release,
    Tree,
)

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_RECORDS: Final = 200_000


@dataclass(frozen=True)
class Receipt:
    """The evidence that the sender of a forget request keeps; ``salt`` is secret."""

    salt: bytes
    records: int
    record_ids: tuple[str, ...]
    subject_ids: tuple[str, ...]

    @classmethod
    def from_json(cls, content: bytes) -> "Receipt":
        """Parse ``receipt_salt``, ``records``, ``record_ids`` and ``subject_ids`` of a receipt."""
        if len(content) > MAX_BYTES:
            raise _refusal(f"larger than {MAX_BYTES} bytes")
        try:
            document: dict[str, Any] = strict_json.loads(content)
            receipt = cls(
                salt=base64.b64decode(document["receipt_salt"], validate=True),
                records=document["records"],
                record_ids=tuple(document.get("record_ids", ())),
                subject_ids=tuple(document.get("subject_ids", ())),
            )
            for each in (*receipt.record_ids, *receipt.subject_ids):
                each.encode()  # JSON can hold a lone surrogate, which is not text
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, binascii.Error):
                raise _refusal("its salt is not in base64") from error
            raise _refusal("not a receipt") from error
        receipt._check()
        return receipt

    def _check(self) -> None:
        ids = (*self.record_ids, *self.subject_ids)
        if (
            len(self.salt) != SALT_BYTES
            or type(self.records) is not int
            or not 1 <= self.records <= MAX_RECORDS
            or not 1 <= len(ids) <= MAX_RECORDS
            or not all(isinstance(each, str) for each in ids)
        ):
            raise _refusal("not a receipt")

    def find(
        self, commitments: set[bytes]
    ) -> tuple[list[dict[int, bytes]], list[dict[int, bytes]]]:
        """Return, for each record id and each subject, which commitments are its records'.

        These are numbered from 0. A number of a subject is missing where the record was named by
        its own id as well, so at most as many are missing as were named so.
        """
        of_records = self._find("record", self.record_ids, commitments, most_missing=0)
        named = sum(map(len, of_records))
        return of_records, self._find("subject", self.subject_ids, commitments, most_missing=named)

    def _find(
        self,
        kind: Literal["record", "subject"],
        ids: Sequence[str],
        commitments: set[bytes],
        *,
        most_missing: int,
    ) -> list[dict[int, bytes]]:
        found: list[dict[int, bytes]] = []
        for each in sorted(set(map(normal_id, ids))):
            own: dict[int, bytes] = {}
            for ordinal in range(self.records):
                committed = commitment(kind, each, ordinal, salt=self.salt)
                if committed in commitments:
                    own[ordinal] = committed
                elif ordinal - len(own) >= most_missing:
                    break
            found.append(own)
        return found


def check_receipt(
    receipt: Receipt,
    proof: RequestProof | None,
    forgotten: Forgotten | Excluded,
    *,
    members: Sequence[MemberSection] | None = None,
    since: Predicate | None = None,
    before: RequestProof | None = None,
) -> str:
    """Check that a certificate accounts for every record and subject of the request; say how.

    How many records a subject had is the operator's word: the receipt's ``records`` repeats it.
    Of an ensemble, with ``members``, it is also shown to which of them each record belonged, a
    subject's all to one, and that this member is out, or was trained anew since the lineage began;
    where an older certificate ``since`` of the same lineage did not account for the record, after
    that one, whose proof for a request is ``before``.
    """
    if proof is None:
        raise _refusal("the bundle was not made for a request: download it from the request")
    covered, excluded = _shown(proof, forgotten)
    shown = covered | excluded
    of_records, of_subjects = receipt.find(shown)
    if not shown.issubset(chain(*(found.values() for found in (*of_records, *of_subjects)))):
        raise _refusal("the bundle is about another request")
    if len(shown) != receipt.records:  # a record under both roots counts once
        raise _refusal(f"the certificate accounts for {len(shown)} of {receipt.records} records")
    _require_every_id(of_records, of_subjects)
    _require_one_tree(covered, excluded, since=since, before=before)
    said = f"{len(covered)} records are covered, {len(excluded)} never touched the weights"
    concerned = _concerned(proof.covered, members)
    if concerned is None or members is None or not isinstance(forgotten, Forgotten):
        return said
    leaves = {} if proof.covered is None else proof.covered.leaves
    member_of = {commitment: concerned[place] for place, commitment in leaves.items()}
    for found in of_subjects:
        if len({member_of[each] for each in found.values() if each in member_of}) > 1:
            raise _refusal("a subject's records belonged to several members")
    _require_training(concerned.values(), members, after=forgotten.since_version)
    if isinstance(since, Release):
        # A commitment may be to a record that the older certificate accounts for already, and needs
        # no training: as many are as were added beyond the records that were.
        old = since.forgotten
        added = [member for place, member in concerned.items() if place >= old.covered.size]
        grown = forgotten.covered.size - old.covered.size
        again = grown - (forgotten.records - old.records)
        _require_training(added, members, after=since.model.version, but=again)
    belonged = ", ".join(
        f"{member} (out since version {out})" if (out := members[member].out_since) else str(member)
        for member in sorted(set(concerned.values()))
    )
    return f"{said}; they belonged to members {belonged}"


def _refusal(reason: str) -> VerificationError:
    return VerificationError("receipt", reason)


def _concerned(
    proof: LeafProof | None, members: Sequence[MemberSection] | None
) -> Mapping[int, int] | None:
    """Return the member of each covered record, by its place; None for other models."""
    if proof is None:
        return None
    if (proof.members is None) != (members is None):
        raise _refusal("it does not say to which members its records belonged")
    if proof.members is None or members is None:
        return None
    if max(proof.members.values()) >= len(members):
        raise _refusal("a record belonged to a member that is not there")
    return proof.members


def _require_training(
    concerned: Iterable[int], members: Sequence[MemberSection], *, after: int, but: int = 0
) -> None:
    """Refuse active members that were not trained anew after a version, if it is more than some."""
    known = [each.member() for each in members]
    stayed = [each for each in concerned if known[each].is_active and known[each].since <= after]
    if len(stayed) > but:
        raise _refusal(f"member {stayed[0]} was not trained anew without its records")


def _require_every_id(
    of_records: list[dict[int, bytes]], of_subjects: list[dict[int, bytes]]
) -> None:
    """Refuse a receipt with an id of which nothing is proved, whatever number it states."""
    unproved = sum(not found for found in of_records)
    if unproved:
        raise _refusal(f"{unproved} of its {len(of_records)} record_ids are not proved")
    missing = sum(max(found, default=0) + 1 - len(found) for found in of_subjects)
    if missing > sum(map(len, of_records)):  # each may have been named by its own id instead
        raise _refusal("records of its subject_ids are not proved")


def _require_one_tree(
    covered: set[bytes],
    excluded: set[bytes],
    *,
    since: Predicate | None,
    before: RequestProof | None,
) -> None:
    """Refuse a record that is in the other tree as well, or was in an older certificate."""
    if before is not None and isinstance(since, Release | Exclusion):
        was_covered, was_excluded = _shown(before, since.forgotten)
        covered, excluded = covered | was_covered, excluded | was_excluded
    if covered & excluded:
        raise _refusal("a record is listed both as covered and as never used")


def _shown(proof: RequestProof, forgotten: Forgotten | Excluded) -> tuple[set[bytes], set[bytes]]:
    """Return which commitments of a request a certificate covers, and which it excludes."""
    if isinstance(forgotten, Forgotten):
        covered = _proven(proof.covered, forgotten.covered)
        return covered, _proven(proof.excluded, forgotten.excluded)
    meant = range(forgotten.first, forgotten.first + forgotten.leaves)
    return _proven(proof.covered, None), _proven(proof.excluded, forgotten.excluded, meant)


def _proven(proof: LeafProof | None, tree: Tree | None, meant: range | None = None) -> set[bytes]:
    """Return commitments that are in a tree, all of them at places that are ``meant``."""
    if proof is None:
        return set()
    if tree is None:
        raise _refusal("the certificate has no tree for these commitments")
    if not all(meant is None or index in meant for index in proof.leaves):
        raise _refusal("the certificate is not about all of its records")
    try:
        merkle.verify_leaves(
            leaves=proof.in_tree,
            size=tree.size,
            proof=proof.siblings,
            expected_root=bytes.fromhex(tree.root),
        )
    except ProofError as error:
        raise _refusal("its records are not under the certificate") from error
    return set(proof.leaves.values())
