"""What callers ask for, and what is stored in place of the ids in it.

Callers' own names of a request become keyed hashes, ids of records become the records themselves
and salted commitments to them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.access.pseudonyms import Pseudonyms
from app.domain.errors import UnknownRecordsError
from app.domain.ids import commitment, normal_id
from app.registry.datasets import repository as datasets
from app.registry.datasets.repository import KeyedRecord

MAX_IDS = 100_000
SALT_BYTES = 32
MAX_REPORTED_UNKNOWN = 20


@dataclass(frozen=True)
class NewForgetRequest:
    """What a caller asks for; its callers send all but ``NOT_SENT``.

    Attributes:
        record_ids, subject_ids: owners' ids; at least one altogether.
        external_id: The caller's own id, unique per caller; a repeated one gets the first answer.
        idempotency_key: Works alike. Of both only keyed hashes are stored.
        status_callback_urls: Receive every change of the request's state; see docs/callbacks.md.
        everywhere: All people of the request without a dataset of which this is a part.
        hold: Whether a person decides on it first: it is ``received``, its deadline runs, and
            nothing is forgotten until it is accepted.
        replacement: Rows that take the place of the records that are named (GDPR Art. 16): stored
            in the same transaction, they join at each model's next training. Each has the id of
            such a record or person. It needs a dataset, and the scope ``data:write``, too.
        replacements: How many rows do.
    """

    dataset: str
    record_ids: Sequence[str] = ()
    subject_ids: Sequence[str] = ()
    external_id: str | None = None
    status_callback_urls: Sequence[str] = ()
    replacement: Sequence[Mapping[str, Any]] = ()
    hold: bool = False
    idempotency_key: str | None = None
    subject_request_id: str | None = None
    everywhere: Sequence[str] = ()
    replacements: int = 0

    @property
    def size(self) -> int:
        """How many ids it names."""
        return len(self.record_ids) + len(self.subject_ids)

    @property
    def stored(self) -> dict[str, Any]:
        """The columns of what is stored as it was asked for."""
        return {
            "subject_request_id": self.subject_request_id,
            "replacement_count": self.replacements,
        }


NOT_SENT = ("idempotency_key", "subject_request_id", "everywhere", "replacements")
"""What else belongs to a new request."""


@dataclass(frozen=True)
class Call:
    """A new request, its caller's API key, and who is named in the log."""

    request: NewForgetRequest
    api_key_id: str
    actor: str


@dataclass(frozen=True)
class DedupKeys:
    """What a repeated request is recognised by.

    Attributes:
        external_key, idempotency_key: keyed hashes of the caller's own names of it.
        digest: keyed hash of its content; a different one under a known name is a mistake.
    """

    external_key: bytes | None
    idempotency_key: bytes | None
    digest: bytes | None

    @classmethod
    def of(cls, request: NewForgetRequest, dataset_id: str, pseudonyms: Pseudonyms) -> "DedupKeys":
        """Return them for a request about a dataset."""
        return cls(
            external_key=hashed(pseudonyms.external_id, request.external_id),
            idempotency_key=hashed(pseudonyms.idempotency_key, request.idempotency_key),
            digest=pseudonyms.upload(dataset_id, _content(request)),
        )

    def names(self, api_key_id: str) -> list[tuple[str, str, bytes]]:
        """Return the names, kept apart by caller and kind."""
        named = (("external id", self.external_key), ("idempotency key", self.idempotency_key))
        return [(api_key_id, kind, key) for kind, key in named if key is not None]


@dataclass(frozen=True)
class Named:
    """The ids that one request names, by their pseudonyms."""

    records: Mapping[bytes, str]
    subjects: Mapping[bytes, str]

    @classmethod
    def by(cls, request: NewForgetRequest, dataset_id: str, pseudonyms: Pseudonyms) -> "Named":
        """Return what a request names in a dataset."""
        return cls(
            {pseudonyms.record(dataset_id, i): i for i in request.record_ids},
            {pseudonyms.subject(dataset_id, i): i for i in request.subject_ids},
        )


class Known:
    """The records that a dataset holds, or has held, of those that some requests name."""

    def __init__(self, records: Iterable[KeyedRecord]) -> None:
        self._by_key: dict[bytes | None, dict[int, KeyedRecord]] = {}
        self._by_subject: dict[bytes, dict[int, KeyedRecord]] = {}
        for record in records:
            self._by_key.setdefault(record.record_key, {})[record.seq] = record
            if record.subject_key is not None:
                self._by_subject.setdefault(record.subject_key, {})[record.seq] = record

    @classmethod
    def read(cls, session: Session, dataset_id: str, named: Sequence[Named]) -> "Known":
        """Read them at once for all requests; the caller holds the dataset's lock."""
        record_keys = {key for one in named for key in one.records}
        subject_keys = {key for one in named for key in one.subjects}
        return cls(
            datasets.keyed_records(
                session, dataset_id, record_keys=record_keys, subject_keys=subject_keys
            )
        )

    def resolve(self, named: Named, salt: bytes) -> list[tuple[KeyedRecord, bytes]]:
        """Return each record that one request names, with its commitment.

        An id names every record that was pushed with it, those forgotten before included: a model
        may still have to forget them.

        Raises:
            UnknownRecordsError: ids that the dataset never held.
        """
        self._require(named)
        resolved: dict[int, tuple[KeyedRecord, bytes]] = {}
        for key, subject_id in named.subjects.items():
            for ordinal, (seq, record) in enumerate(sorted(self._by_subject[key].items())):
                resolved[seq] = record, commitment("subject", subject_id, ordinal, salt=salt)
        for key, record_id in named.records.items():
            for ordinal, (seq, record) in enumerate(sorted(self._by_key[key].items())):
                resolved[seq] = record, commitment("record", record_id, ordinal, salt=salt)
        return list(resolved.values())

    def _require(self, named: Named) -> None:
        unknown = [i for key, i in named.records.items() if key not in self._by_key]
        unknown += [i for key, i in named.subjects.items() if key not in self._by_subject]
        if unknown:
            raise UnknownRecordsError(len(unknown), unknown[:MAX_REPORTED_UNKNOWN])


def known_subjects(
    session: Session, dataset_id: str, subject_ids: Sequence[str], pseudonyms: Pseudonyms
) -> list[str]:
    """Return which people a dataset knows, or has known."""
    keys = {pseudonyms.subject(dataset_id, i): i for i in subject_ids}
    found = datasets.keyed_records(session, dataset_id, subject_keys=list(keys))
    held = {record.subject_key for record in found}
    return [subject_id for key, subject_id in keys.items() if key in held]


def hashed(by: Callable[[str], bytes], raw: str | None) -> bytes | None:
    """Return a keyed hash, or None for None."""
    return None if raw is None else by(raw)


def _content(request: NewForgetRequest) -> bytes:
    body: list[object] = [
        sorted(set(map(normal_id, request.record_ids))),
        sorted(set(map(normal_id, request.everywhere or request.subject_ids))),
        request.external_id,
    ]
    if request.subject_request_id is not None:  # another one's part is not its own
        body.append(request.subject_request_id)
    if request.status_callback_urls:
        body.append(sorted(set(request.status_callback_urls)))
    if request.hold:
        body.append("hold")
    if request.replacement:
        body.append({"replacement": request.replacement})
    return json.dumps(body).encode()
