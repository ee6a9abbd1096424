"""From the ids in demands to records and salted commitments to them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.database.direct import Direct
from app.datasets import repository as datasets
from app.datasets.pseudonyms import Pseudonyms
from app.datasets.repository import KeyedRecord
from app.domain.commitments import record_commitment, subject_commitment
from app.domain.errors import UnknownRecordsError
from app.ledger.demands import ForgetDemand

MAX_REPORTED_UNKNOWN = 20


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
    def read(cls, direct: Direct, dataset_id: str, named: Sequence[Named]) -> "Known":
        """Read them at once for all demands; the caller holds the dataset's lock."""
        record_keys = {key for one in named for key in one.records}
        subject_keys = {key for one in named for key in one.subjects}
        return cls(
            datasets.keyed_records(
                direct, dataset_id, record_keys=record_keys, subject_keys=subject_keys
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
