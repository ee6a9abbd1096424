"""What must hold after a storm; each check prints a line, and raises where something is wrong."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import select

from app.client import ExpungeClient
from app.domain.errors import VerificationError
from app.domain.states import ACTIVE_RUN_STATES
from app.evidence.certificates.dossier import verify_dossier
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.verification import verify
from app.evidence.log.tables import LogEntryRow
from app.ledger import repository
from app.ledger.tables import ForgetRequestRow, ObligationRow, RunRow
from app.registry.membership import membership_of
from app.registry.repository import model_named
from app.registry.tables import ModelRow, VersionRow
from tests.support.digits import RECORDS_PER_SUBJECT
from tests.support.facts import (
    assert_only_the_head_is_served,
    only_what_is_current_is_stored,
    weights,
)
from tests.support.patience import until
from tests.support.service import Service
from tests.support.traces import Traces
from tests.system.storm.callers import Asked, Book, persistently
from tests.system.storm.scene import (
    DOOMED,
    IMPORTED,
    IMPORTED_ROWS,
    MODELS,
    REFILL_AT,
    Crowd,
    models_of,
)

SETTLING_S = 420.0


class Aftermath:
    """A service after a storm, and what its callers were told."""

    def __init__(
        self, service: Service, client: ExpungeClient, book: Book, crowds: Sequence[Crowd]
    ) -> None:
        self._service, self._client, self._book = service, client, book
        self._crowds = {crowd.dataset: crowd for crowd in crowds}

    def settle(self) -> None:
        """Wait until every request has ended; those whose runs were killed too often go on."""
        persistently(lambda: self._client.destroy_dataset(DOOMED, backbones=[DOOMED]))

        def settled() -> bool:
            requests = self._client.requests()
            for request in requests:
                if request["failure_reason"]:
                    self._client.retry(request["id"])
            imports = self._client.imports(IMPORTED)
            for each in imports:
                if each["state"] == "failed":
                    self._client.retry_import(IMPORTED, each["id"])
            erased = all(each["completed_at"] or each["ground"] for each in requests)
            imported = all(each["state"] in ("completed", "cancelled") for each in imports)
            return erased and imported and self._is_refilled()

        until(settled, SETTLING_S)

    def _is_refilled(self) -> bool:
        """Return whether no run is going, and none begins by itself."""
        members = self._client.certified("left_out")["members"]
        out = sum(each["sha256"] is None for each in members)
        with self._service.database() as database, database.transaction() as session:
            going = session.scalar(select(RunRow.id).where(RunRow.state.in_(ACTIVE_RUN_STATES)))
        return going is None and out < REFILL_AT * len(members)

    def check(self, traces: Traces) -> None:
        """Check everything, from what callers see to what lies on the disk."""
        for name, check in self._checks(traces).items():
            found = check()
            print(f"ok   {name}: {found}", flush=True)

    def _checks(self, traces: Traces) -> dict[str, Callable[[], str]]:
        return {
            "no caller met a problem": self._no_problems,
            "accepted = ended once": self._accepted_is_ended_once,
            "no stuck obligation": self._nothing_open,
            "what was destroyed is gone": self._destroyed,
            "each row is imported once": self._imported_once,
            "each row is corrected once": self._corrected_once,
            "certificates verify": self._certificates_verify,
            "coverage = union": self._coverage_is_union,
            "only heads are served": self._only_heads_are_served,
            "nothing is stored but what is current": self._no_orphans,
            "expunge log fsck": lambda: self._command("log", "fsck"),
            "expunge storage check": lambda: self._command("storage", "check"),
            "no private byte anywhere": lambda: self._no_private_byte(traces),
            "the service's log": self._log_is_clean,
        }

    def _no_problems(self) -> str:
        assert self._book.problems == [], self._book.problems
        return f"{len(self._book.asked)} requests were accepted"

    def _accepted_is_ended_once(self) -> str:
        requests = self._client.requests()
        asked_for = [*self._book.asked, *self._book.refused]
        assert {r["id"] for r in requests} == {a.request for a in asked_for}
        states = Counter(request["state"] for request in requests)
        told = self._told()
        for asked in self._book.asked:
            state = self._client.request(asked.request)["state"]
            assert state == ("cancelled" if asked.cancelled else "completed"), (asked, state)
            assert told["request.accepted", asked.request] == 1
            assert told[f"request.{state}", asked.request] == 1
        for refused in self._book.refused:
            answer = self._client.request(refused.request)
            assert (answer["state"], answer["obligations"]) == ("refused", []), answer
            assert told["request.refused", refused.request] == 1
            assert told["request.accepted", refused.request] == 0
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))

    def _told(self) -> Counter[tuple[str, str | None]]:
        with self._service.database() as database, database.transaction() as session:
            bodies = [json.loads(body) for body in session.scalars(select(LogEntryRow.body))]
        return Counter((body["kind"], body.get("request")) for body in bodies)

    def _nothing_open(self) -> str:
        with self._service.database() as database, database.transaction() as session:
            obligations = Counter(session.scalars(select(ObligationRow.state)))
            runs = Counter(session.scalars(select(RunRow.state)))
        assert set(obligations) <= {"certified", "cancelled"}, obligations
        assert set(runs) <= {"published", "failed", "cancelled"}, runs  # with what was destroyed
        return f"{sum(obligations.values())} obligations, {sum(runs.values())} runs"

    def _destroyed(self) -> str:
        """Check that nothing of the doomed dataset is left, and that its entry verifies."""
        until(lambda: self._client.destruction(DOOMED)["complete"])
        dossier = self._client.dossier("dataset", DOOMED)
        facts = verify_dossier(dossier, trusted=self._client.trusted_keys())["destruction"]
        assert (facts["complete"], facts["records"]) == (True, 0)
        assert [each["name"] for each in facts["models"]] == [DOOMED]
        stated = json.loads(self._client.destruction(DOOMED)["statement"]["entry"])
        assert [each["name"] for each in stated["backbones"]] == [DOOMED]
        versions = [each["sha256"] for each in facts["models"][0]["versions"]]
        assert stated["models"][0]["versions"] == {str(n): v for n, v in enumerate(versions, 1)}
        assert weights(self._client, DOOMED, len(versions)).status_code == 410
        return f"{stated['records']} records, {len(versions)} versions"

    def _corrected_once(self) -> str:
        corrected = 0
        for crowd in self._crowds.values():
            mine = [asked for asked in self._book.asked if asked.dataset == crowd.dataset]
            corrected += (new := sum(asked.corrected for asked in mine))
            pushed = sum(people.records for people in crowd.everyone()) + new
            gone = len(self._gone_from(crowd)) * RECORDS_PER_SUBJECT
            stored = self._client.dataset(crowd.dataset)
            assert (stored["records"], stored["erased"]) == (pushed - gone, gone), stored
        return f"{corrected} rows"

    def _imported_once(self) -> str:
        count, records = (
            len(self._client.imports(IMPORTED)),
            self._client.dataset(IMPORTED)["records"],
        )
        assert records == (IMPORTED_ROWS if count else 0)
        return f"{count} imports"

    def _certificates_verify(self) -> str:
        """Verify every certificate of every request; weights that were replaced are gone."""
        trusted = self._client.trusted_keys()
        directory = self._service.data_dir.parent / "downloads"
        heads = {n: self._client.download(n, directory, trusted=trusted).weights for n in MODELS}
        whole = replaced = 0
        for asked in self._book.asked:
            for certificate in self._client.certificates_of(asked.request):
                bundle = json.dumps(certificate["bundle"]).encode()
                try:
                    verify(bundle=bundle, weights=heads[certificate["model"]], trusted=trusted)
                    whole += 1
                except VerificationError as error:
                    if error.step != "digest":
                        raise
                    replaced += 1
        return f"{whole} whole, {replaced} but for weights that were replaced"

    def _coverage_is_union(self) -> str:
        """Check that each head's certificate covers all that was asked for so far, and no more.

        Cancelled requests are among it: their records left the model all the same. What came after
        a head's run began named people who had been forgotten before, or whom the head never
        learned from: a certificate of its own says so. If that came before the head, the head's
        certificate has them as well, because none of a lineage accounts for less than one before.
        """
        counts = []
        for dataset in self._crowds:
            asked = [each for each in self._book.asked if each.dataset == dataset]
            for name in models_of(dataset):
                through, forgotten = self._head(name)
                epochs = self._epochs(asked)
                late = [each for each in asked if epochs[each.request] > through]
                union = {n for each in asked if each not in late for n in each.subjects}
                stale = self._stale(name, [each.request for each in late], after=through)
                assert not stale, (name, through, stale)
                covered = forgotten["records"] + forgotten["excluded_records"]
                more = {n for each in late for n in each.subjects} - union
                people = covered / RECORDS_PER_SUBJECT
                found = (name, forgotten, len(union), len(more))
                assert people in range(len(union), len(union) + len(more) + 1), found
                counts.append(f"{name} {covered}")
        return ", ".join(counts)

    def _stale(self, name: str, requests: Sequence[str], *, after: int) -> list[str]:
        """Return those of the requests that name records which the head holds and must not."""
        with self._service.database() as database, database.transaction() as session:
            membership = membership_of(model_named(session, name))
            assert membership is not None
            return [
                request
                for request in requests
                for record in repository.records_of(session, request)
                if (record.forgotten_epoch or 0) > after
                and membership.includes(record)
                and membership.learned_from(record)
            ]

    def _epochs(self, asked: Sequence[Asked]) -> dict[str, int]:
        query = select(ForgetRequestRow.id, ForgetRequestRow.forget_epoch).where(
            ForgetRequestRow.id.in_([each.request for each in asked])
        )
        with self._service.database() as database, database.transaction() as session:
            return {row.id: row.forget_epoch for row in session.execute(query)}

    def _head(self, name: str) -> tuple[int, dict[str, Any]]:
        """Return the epoch that a model's head covers, and what its certificate says of it."""
        query = (
            select(VersionRow.covers_epoch, CertificateRow.envelope)
            .join(ModelRow, ModelRow.head_version_id == VersionRow.id)
            .join(CertificateRow, CertificateRow.id == VersionRow.certificate_id)
            .where(ModelRow.name == name)
        )
        with self._service.database() as database, database.transaction() as session:
            epoch, envelope = session.execute(query).one()
        return epoch, statement_of(envelope)["predicate"]["forgotten"]

    def _only_heads_are_served(self) -> str:
        heads = {name: assert_only_the_head_is_served(self._client, name) for name in MODELS}
        return ", ".join(f"{name} {number}" for name, number in heads.items())

    def _no_orphans(self) -> str:
        until(lambda: only_what_is_current_is_stored(self._service))
        return "heads and shards"

    def _command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "app.cli", *arguments],
            env=self._service.environment(),
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip().splitlines()[-1]

    def _no_private_byte(self, traces: Traces) -> str:
        for crowd in self._crowds.values():
            for number in self._gone_from(crowd):
                traces.forgotten(crowd.at_first, number)
        traces.assert_none_at_all()
        traces.assert_nothing_in_objects(traces.opened())
        return f"{len(traces.gone)} markers in every spelling"

    def _gone_from(self, crowd: Crowd) -> set[int]:
        """Return the subjects whose records were forgotten."""
        mine = [asked for asked in self._book.asked if asked.dataset == crowd.dataset]
        return {n for a in mine for n in a.subjects}

    def _log_is_clean(self) -> str:
        text = self._service.log.read_text()
        for never in ("subject-", "record-", "[SQL", "Traceback"):
            assert never not in text, f"the log says {never!r}"
        return f"{len(text.splitlines())} lines"
