"""What a public dataset's records are, as one digest that who has the data can compute, too.

    record   SHA-256 of its label (int64, little-endian) and its raw features as they are stored
             (in C order, little-endian)
    dataset  SHA-256 of the schema as JSON, a line feed, and the records' digests in rising order

Neither ids nor the order of the pushes enter.
"""

import hashlib
import json

import numpy as np
import numpy.typing as npt

from app.domain.schema import FeatureSchema


class ContentDigest:
    """The digest of records that come in parts."""

    def __init__(self, schema: FeatureSchema) -> None:
        self._schema = schema
        self._records: list[bytes] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, labels: npt.NDArray[np.int64], features: npt.NDArray[np.generic]) -> None:
        """Add records: labels [n] and raw features [n, size]."""
        little = features.astype(features.dtype.newbyteorder("<"), copy=False)
        for label, row in zip(labels.astype("<i8"), little, strict=True):
            self._records.append(hashlib.sha256(label.tobytes() + row.tobytes()).digest())

    def hexdigest(self) -> str:
        """Return the digest of all records so far."""
        schema = json.dumps(self._schema.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(schema.encode() + b"\n" + b"".join(sorted(self._records))).hexdigest()
