"""The last of a run: its result is stored, checked by the offline verifier, and published."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from app.domain.content import Content
from app.domain.errors import DraftOutdatedError
from app.evidence.certificates.checkpoint import origin_of
from app.evidence.certificates.signing import payload_from
from app.evidence.certificates.trusted_keys import TrustedKey, TrustedKeys
from app.evidence.certificates.verification import check_place, check_statement
from app.evidence.certificates.weights_file import WeightsFile
from app.ledger import publication, runs
from app.runtime.database.queries import database_time
from app.runtime.failpoints import reach
from app.services import Services
from app.storage.blobs import StoredBlob
from workers.leases.lease import Lease
from workers.leases.outages import outlast_outages
from workers.training.published.content import WeightsContent


def stored(
    services: Services,
    check: Callable[[], None],
    reserve: Callable[[Session], str],
    content: Content,
) -> StoredBlob:
    """Write a result to an object; the run is recorded as its writer before it exists.

    ``reserve`` returns the object's id, if the worker still holds what it makes; ``check`` says
    whether this worker may go on.
    """

    def reserved() -> str:
        with services.database.transaction() as session:
            return reserve(session)

    blob_id = outlast_outages(check, reserved)
    return outlast_outages(check, lambda: services.blobs.fill(blob_id, content))


def stored_by_run(services: Services, lease: Lease, content: Content, kind: str) -> StoredBlob:
    """Write a run's own result."""
    reserve = partial(
        runs.reserve_blob, run_id=lease.run_id, fencing_token=lease.fencing_token, kind=kind
    )
    return stored(services, lease.check, reserve, content)


def database_now(services: Services, lease: Lease) -> datetime:
    """Return the database's time, in an outage once it is over."""

    def read() -> datetime:
        with services.database.transaction() as session:
            return database_time(session)

    return outlast_outages(lease.check, read)


def publish_result(
    services: Services, lease: Lease, result: publication.RunResult, content: WeightsContent
) -> None:
    """Publish the result if the offline verifier accepts it.

    Repeating it after a commit whose answer was lost publishes nothing twice. Only the transaction
    decides whether this worker still holds the run: after such a commit the heartbeat would find
    the run over, as if another worker had ended it.

    Raises:
        HeadMovedError: an ensemble's members have to be put together again.
    """
    key = TrustedKey(services.signer.public_key)

    def examine(bundle: Mapping[str, Any]) -> None:
        origin = origin_of(bundle["log"]["checkpoint"].encode())
        trusted = TrustedKeys(origin, (key,)).to_bytes()
        check_place(bundle=json.dumps(bundle).encode(), trusted=trusted)

    def publish() -> None:
        with services.database.transaction() as session:
            checked = publication.draft(session, run_id=lease.run_id, result=result)
        if checked is not None:
            check_statement(payload_from(checked), weights=WeightsFile(content.opened()))
        with services.database.transaction() as session:
            publication.publish(
                session,
                services.signer,
                run_id=lease.run_id,
                fencing_token=lease.fencing_token,
                result=result,
                checked=checked,
                examine=examine,
            )

    def publish_when_current() -> None:
        while True:
            try:
                return publish()
            except DraftOutdatedError:
                lease.check_stop()

    reach("before_publish")
    outlast_outages(lease.check_stop, publish_when_current)
    reach("after_publish")
