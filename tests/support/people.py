"""Made-up people whose ids and features can be recognised wherever they are written down."""

import secrets
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
from pyarrow import BufferReader

from app.registry.datasets.columns.parquet import to_parquet
from demo.tables import record_table
from tests.support.digits import RECORDS_PER_SUBJECT, TASK, digits_parquet
from tests.support.markers import Marker

_SHARED_PIXELS, _OWN_PIXELS = 16, 16


@dataclass(frozen=True)
class People:
    """Digits of made-up people. Features are small numbers, as those of all digits are.

    Attributes:
        records: how many there are, ten of each subject.
        token: a part of every id, and of nothing else.
    """

    records: int
    token: str
    _shared: bytes
    _own: tuple[bytes, ...]

    @classmethod
    def invent(cls, records: int) -> "People":
        """Make up people who have never been before."""
        subjects = range(-(-records // RECORDS_PER_SUBJECT))
        own = tuple(_small_bytes(_OWN_PIXELS) for _ in subjects)
        return cls(records, secrets.token_hex(8), _small_bytes(_SHARED_PIXELS), own)

    def subject(self, number: int) -> str:
        """Return a subject's id."""
        return f"subject-{self.token}-{number}"

    def record(self, number: int) -> str:
        """Return a record's id."""
        return f"record-{self.token}-{number}"

    def parquet(self) -> bytes:
        """Return all records."""
        digits = pq.read_table(BufferReader(digits_parquet(self.records)))
        images = digits["features"].chunk(0).storage.flatten().to_numpy()
        images = images.reshape(self.records, -1).copy()
        numbers = range(self.records)
        for i in numbers:
            marked = self._shared + self._own[i // RECORDS_PER_SUBJECT]
            images[i, : len(marked)] = np.frombuffer(marked, dtype=np.uint8)
        return to_parquet(
            record_table(
                record_ids=[self.record(i) for i in numbers],
                subject_ids=[self.subject(i // RECORDS_PER_SUBJECT) for i in numbers],
                labels=digits["label"].to_numpy(),
                features=images.reshape(-1, 8, 8),
            )
        )

    def ids(self) -> Marker:
        """Return what every id of these people holds."""
        return Marker("an id", self.token.encode())

    def features(self) -> list[Marker]:
        """Return what the features of each of these people hold."""
        return _features("anybody's features", self._shared)

    def features_of(self, number: int) -> list[Marker]:
        """Return what the features of one subject hold, and of no other."""
        return _features(f"features of subject {number}", self._own[number])


def _features(name: str, pixels: bytes) -> list[Marker]:
    """Return features as they are pushed, and as networks see them."""
    floats = np.frombuffer(pixels, dtype=np.uint8).astype(np.float32)
    scale = np.float32(TASK["inputs"][0]["scale"])
    return [
        Marker(name, pixels),
        Marker(f"{name}, float32", floats.tobytes()),
        Marker(f"{name}, scaled", (floats * scale).tobytes()),
    ]


def _small_bytes(count: int) -> bytes:
    return bytes(secrets.randbelow(17) for _ in range(count))
