"""What callers ask for, and the keyed hashes that are stored in place of their names for it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.datasets.pseudonyms import Pseudonyms


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
