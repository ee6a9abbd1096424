"""What callers ask for, and what is stored in place of the ids in it.

Callers' own names of a demand become keyed hashes, ids of records become the records themselves
and salted commitments to them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.datasets import repository as datasets
from app.datasets.pseudonyms import Pseudonyms
from app.datasets.repository import KeyedRecord
from app.domain.commitments import record_commitment, subject_commitment
from app.domain.errors import UnknownRecordsError

MAX_REPORTED_UNKNOWN = 20


@dataclass(frozen=True)
class ForgetDemand:
    """What a caller asks for.

    Attributes:
        dataset: the dataset's name.
        record_ids, subject_ids: owners' ids; at least one altogether.
        external_id: the caller's own id, unique per caller; a repeated one gets the first answer.
        idempotency_key: works alike. Of both only keyed hashes are stored.
        status_callback_urls: where to send every change of the request's state.
        subject_request_id: the data subject request that this one belongs to.
    """

    dataset: str
    record_ids: Sequence[str] = ()
    subject_ids: Sequence[str] = ()
    external_id: str | None = None
    idempotency_key: str | None = None
    status_callback_urls: Sequence[str] = ()
    subject_request_id: str | None = None

    @property
    def size(self) -> int:
        """How many ids it names."""
        return len(self.record_ids) + len(self.subject_ids)


@dataclass(frozen=True)
class Call:
    """A demand, with its caller.

    Attributes:
        demand: what is asked for.
        api_key_id: of the caller.
        actor: who is named in the log.
    """

    demand: ForgetDemand
    api_key_id: str
    actor: str


@dataclass(frozen=True)
class Recognition:
    """How a repeated demand is recognised.

    Attributes:
        external_key, idempotency_key: keyed hashes of the caller's own names of it.
        digest: keyed hash of its content; a different one under a known name is a mistake.
    """

    external_key: bytes | None
    idempotency_key: bytes | None
    digest: bytes

    @classmethod
    def of(cls, demand: ForgetDemand, dataset_id: str, pseudonyms: Pseudonyms) -> "Recognition":
        """Return it for a demand on a dataset."""
        return cls(
            external_key=hashed(pseudonyms.external_id, demand.external_id),
            idempotency_key=hashed(pseudonyms.idempotency_key, demand.idempotency_key),
            digest=pseudonyms.upload(dataset_id, _said(demand)),
        )

    def names(self, api_key_id: str) -> list[tuple[str, str, bytes]]:
        """Return the names, kept apart by caller and kind."""
        named = (("external id", self.external_key), ("idempotency key", self.idempotency_key))
        return [(api_key_id, kind, key) for kind, key in named if key is not None]


@dataclass(frozen=True)
class Named:
    """The ids of one demand, by their pseudonyms."""

    records: Mapping[bytes, str]
    subjects: Mapping[bytes, str]

    @classmethod
    def by(cls, demand: ForgetDemand, dataset_id: str, pseudonyms: Pseudonyms) -> "Named":
        """Return what a demand names in a dataset."""
        return cls(
            {pseudonyms.record(dataset_id, i): i for i in demand.record_ids},
            {pseudonyms.subject(dataset_id, i): i for i in demand.subject_ids},
        )


class Known:
    """The records that a dataset holds, or has held, of those that some demands name."""

    def __init__(self, records: Iterable[KeyedRecord]) -> None:
        self._by_key: dict[bytes, KeyedRecord] = {}
        self._by_subject: dict[bytes, dict[int, KeyedRecord]] = {}
        for record in records:
            self._by_key[record.record_key] = record
            if record.subject_key is not None:
                self._by_subject.setdefault(record.subject_key, {})[record.seq] = record

    @classmethod
    def read(cls, session: Session, dataset_id: str, named: Sequence[Named]) -> "Known":
        """Read them at once for all demands; the caller holds the dataset's lock."""
        record_keys = {key for one in named for key in one.records}
        subject_keys = {key for one in named for key in one.subjects}
        return cls(
            datasets.keyed_records(
                session, dataset_id, record_keys=record_keys, subject_keys=subject_keys
            )
        )

    def resolve(self, named: Named, salt: bytes) -> list[tuple[KeyedRecord, bytes]]:
        """Return each record that one demand names, with its commitment.

        Raises:
            UnknownRecordsError: ids that the dataset never held.
        """
        self._require(named)
        resolved: dict[int, tuple[KeyedRecord, bytes]] = {}
        for key, record_id in named.records.items():
            record = self._by_key[key]
            resolved[record.seq] = (record, record_commitment(salt=salt, record_id=record_id))
        for key, subject_id in named.subjects.items():
            for ordinal, (seq, record) in enumerate(sorted(self._by_subject[key].items())):
                commitment = subject_commitment(salt=salt, subject_id=subject_id, ordinal=ordinal)
                resolved.setdefault(seq, (record, commitment))
        return list(resolved.values())

    def _require(self, named: Named) -> None:
        unknown = [i for key, i in named.records.items() if key not in self._by_key]
        unknown += [i for key, i in named.subjects.items() if key not in self._by_subject]
        if unknown:
            raise UnknownRecordsError(len(unknown), unknown[:MAX_REPORTED_UNKNOWN])


def hashed(by: Callable[[str], bytes], raw: str | None) -> bytes | None:
    """Return a keyed hash; None of None."""
    return None if raw is None else by(raw)


def _said(demand: ForgetDemand) -> bytes:
    body: list[object] = [
        sorted(set(demand.record_ids)),
        sorted(set(demand.subject_ids)),
        demand.external_id,
    ]
    if demand.status_callback_urls:
        body.append(sorted(set(demand.status_callback_urls)))
    return json.dumps(body).encode()
