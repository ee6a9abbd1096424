"""Once every model has forgotten records, they are erased; no trace of them is left anywhere.

 1. The records leave their shards, and the features made of these; one transaction a request.
 2. Every object of the dataset that was given up is shredded: what held the records before,
    versions that were replaced, and the leftovers of attempts that were killed or refused.
 3. The request is completed, unless a writer from before that erasure is still at work.

Requests wait only for objects of their own dataset. Where one cannot be erased or shredded, others
continue.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from app.ledger import publication, repository
from app.ledger.requests import ForgetRequests
from app.runtime.database import Database
from app.runtime.database.engine import is_away
from app.runtime.spans import Facts, Step, Work, at_commit
from app.storage.blobs import Blobs


@dataclass(frozen=True)
class Completion:
    """Completes requests; any number of processes may do so at the same time."""

    database: Database
    blobs: Blobs
    requests: ForgetRequests

    def complete(self, request_ids: Collection[str] | None = None) -> None:
        """Complete those of the given requests that can be; without names, of all.

        Without names, requests that another process is working on are skipped.

        Raises:
            Exception: whatever failed; unless the database is away, all others were completed.
        """
        with self.database.transaction() as session:
            erasable = repository.erasable_requests(session, request_ids)
        failures: list[Exception] = []
        for dataset_id, found in groupby(erasable, key=lambda row: row[0]):
            ids = [request_id for _, request_id in found]
            try:
                self._complete(dataset_id, ids, failures, wait=request_ids is not None)
            except Exception as error:  # noqa: BLE001 - it concerns no other dataset
                failures.append(error)
                if is_away(error):
                    break
        if failures:
            raise failures[0]

    def _complete(
        self, dataset_id: str, ids: Sequence[str], failures: list[Exception], *, wait: bool
    ) -> None:
        begun_ns = time.time_ns()
        erased = []
        for request_id in ids:
            try:
                with self.database.transaction() as session:
                    if self.requests.erase(session, request_id, wait=wait):
                        erased.append(request_id)
            except Exception as error:
                if is_away(error):
                    raise
                failures.append(error)
        self._sweep(dataset_id)
        for request_id in erased:
            with self.database.transaction() as session:
                if self.requests.complete(session, request_id):
                    work = Work(("erase", request_id), [request_id])
                    spans = partial(work.spans, Step.ERASE, begun_ns=begun_ns, facts=Facts())
                    at_commit(session, spans)

    def clean_up(self) -> None:
        """Complete what can be and shred what was given up, each even if the other fails."""
        try:
            self.complete()
        finally:
            self._sweep()

    def _sweep(self, dataset_id: str | None = None) -> None:
        """Shred what was given up, and log which versions are gone."""
        try:
            self.blobs.sweep(dataset_id)
        finally:
            with self.database.transaction() as session:
                publication.note_shredded(session)
