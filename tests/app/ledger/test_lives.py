"""Membership is a fact about a lineage: random histories of several models against plain sets."""

import base64
import json
from dataclasses import dataclass, field

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Engine, select

from app.certificates.signing import statement_of
from app.certificates.verification import check_statement
from app.domain import merkle
from app.domain.errors import ConflictError, PlanError
from app.ledger import repository
from app.ledger.tables import ForgottenRecordRow
from app.models import policies
from app.registry.shapes import TrainingSet, shape_of
from app.registry.tables import VersionRow
from app.schema import all_tables
from app.services import Services
from tests.support.emptying import empty
from tests.support.workshop import RECORDS, Held, Workshop, record_ids

HEAD = {"epochs": 3, "batch_size": 4, "held_out_fraction": 0.25}
KINDS = {
    "tracked_release": {"architecture": "linear_head", "recipe": HEAD},
    "projected_noisy_sgd": {"architecture": "linear_head", "recipe": HEAD},
    "gradient_clipping": {},
    "retraining": {},
    "upload": {"upload": True},
}


MODELS = 5
# Few enough that requests meet; the last ones are there once they are pushed.
IDS = st.sets(st.sampled_from(record_ids(8) + record_ids(3, first=RECORDS)), min_size=1, max_size=3)
# Shrinking takes minutes here; a failure's last steps say enough.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@dataclass
class Lineage:
    """What a plain model of a lineage remembers: ids of records, and who named which.

    Attributes:
        members: what its training read.
        gone: those of them that it has to be without, for ever.
        pairs: requests that named a member since, with its id.
        covered: what the published head is without.
    """

    members: set[str]
    gone: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    covered: set[str] = field(default_factory=set)
    has_head: bool = False

    def forget(self, request: str, ids: set[str]) -> None:
        self.gone |= ids & self.members
        self.pairs |= {(request, i) for i in ids & self.members}


class Lives(RuleBasedStateMachine):
    """Several models over one dataset, and what has to be true of them."""

    names = Bundle("names")
    requests = Bundle("requests")
    going = Bundle("going")

    def __init__(self, services: Services, owner: Engine) -> None:
        super().__init__()
        with owner.begin() as connection:
            empty(connection, all_tables().tables)
        self.workshop = Workshop(services)
        self.pushed = RECORDS
        self.alive = set(record_ids())
        self.erased: set[str] = set()
        self.named: dict[str, set[str]] = {}  # by request
        self.cancelled: set[str] = set()
        self.forgotten_by: dict[str, str] = {}
        self.since: dict[str, set[str]] = {}  # by record: who named it since it was last alive
        self.known: list[str] = []  # models, trained or not
        self.lineages: dict[str, Lineage] = {}
        self.batches: dict[str, dict[int, int]] = {}
        self.seqs: dict[str, int] = {}

    @initialize(target=names, kind=st.sampled_from(sorted(KINDS)))
    def first_model(self, kind: str) -> str:
        """Have something to lose from the start."""
        self._note_seqs()
        return self.define(kind, trained=True)

    @rule(count=st.integers(1, 4))
    def push(self, count: int) -> None:
        self.workshop.push(count, first=self.pushed)
        self.alive |= set(record_ids(count, first=self.pushed))
        self.pushed += count
        self._note_seqs()

    @precondition(lambda self: len(self.known) < MODELS)
    @rule(target=names, kind=st.sampled_from(sorted(KINDS)), trained=st.booleans())
    def define(self, kind: str, trained: bool) -> str:
        name = f"{kind}-{len(self.known)}"
        self.known.append(name)
        mechanism = "gradient_clipping" if kind == "upload" else kind
        self.workshop.define(name, mechanism=mechanism, **KINDS[kind])
        if kind == "upload":
            self.workshop.upload(name)
            everything = set(record_ids(self.pushed))
            gone = everything - self.alive
            pairs = {(request, i) for i in gone for request in self.since[i]}
            self.lineages[name] = Lineage(everything, gone, pairs)
        if trained:
            self.publish(self.begin(name))
        return name

    @rule(target=going, name=names)
    def begin(self, name: str) -> tuple[str, Held, set[str], set[tuple[str, str]]] | None:
        """Start the model's waiting run; its choice of records is the plain model's."""
        self.workshop.dispatch()
        run_id = self.workshop.active_run(name)
        if run_id is None or self.workshop.run(run_id).state != "queued":
            return None
        held = self.workshop.lease(name)
        selection = self.workshop.begin(held)
        if self.workshop.run(run_id).kind == "train":
            self.lineages[name] = Lineage(set(self.alive))
            self.batches.pop(name, None)
        lineage = self.lineages[name]
        left = self._seqs_of(lineage.members - lineage.gone)
        assert selection.retain | selection.held_out == left
        assert not selection.retain & selection.held_out
        return name, held, set(lineage.gone), set(lineage.pairs)

    @rule(run=consumes(going))
    def publish(self, run: tuple[str, Held, set[str], set[tuple[str, str]]] | None) -> None:
        """Publish it; its certificate says what the plain model says, and holds."""
        if run is None:
            return
        name, held, gone, pairs = run
        version = self.workshop.publish(held)
        lineage = self.lineages[name]
        lineage.covered, lineage.has_head = gone, True
        learned = self._learned(name)
        self._require_certificate(version, {(r, i) for r, i in pairs if i in learned})

    @rule(run=consumes(going))
    def lose(self, run: tuple[str, Held, set[str], set[tuple[str, str]]] | None) -> None:
        """Have the worker die: the run waits for another."""
        if run is not None:
            self.workshop.give_up(run[1], permanent=False, attempts=1000)

    @rule(target=requests, named=IDS)
    def forget(self, named: set[str]) -> str:
        named = named & set(self.seqs) or {"record-0"}
        request = self.workshop.forget(*named)
        self.named[request] = named
        for i in named & self.alive:
            self.forgotten_by[i] = request
        self.alive -= named
        for i in named:
            self.since.setdefault(i, set()).add(request)
        owed = {o.model_id: o.state for o in self.workshop.obligations(request)}
        for name, lineage in self.lineages.items():
            lineage.forget(request, named)
            state = owed.pop(self.workshop.model(name).id, None)
            if named & self._learned(name) & lineage.gone - lineage.covered:
                assert state == "open", name
            elif named & lineage.members and lineage.has_head:
                assert state == "certified", name
            else:
                assert state is None, name
        assert not owed
        return request

    @rule(named=IDS, kind=st.none() | st.sampled_from(sorted(KINDS)))
    def change_of_mind(self, named: set[str], kind: str | None) -> None:
        """Forget and restore; a model may be trained in between."""
        request = self.forget(named)
        if kind is not None and len(self.known) < MODELS:
            self.define(kind, trained=True)
        self.cancel(request, restore=True)

    @rule(request=consumes(requests), restore=st.booleans())
    def cancel(self, request: str, restore: bool) -> None:
        state = self.workshop.request(request).state
        try:
            with self.workshop.transaction() as session:
                self.workshop.services.forget_requests.cancel(session, request, restore=restore)
        except ConflictError:
            assert state != "accepted"
            return
        assert state == "accepted"
        self.cancelled.add(request)
        for i in self.named[request] - self.alive - self.erased if restore else ():
            if self.forgotten_by[i] == request and self.since[i] <= self.cancelled:
                self.alive.add(i)
                self.since[i] = set()

    @rule()
    def work(self) -> None:
        """Have all models see to what they owe."""
        for name in list(self.known):
            self.publish(self.begin(name))

    @rule()
    def erase(self) -> None:
        self.workshop.services.clean_up()
        for request, named in self.named.items():
            if self.workshop.request(request).state == "completed":
                self.erased |= named
        assert not self.erased & self.alive

    @rule(name=names, mechanism=st.sampled_from(["retraining", "tracked_release"]))
    def patch(self, name: str, mechanism: str) -> None:
        try:
            changes = {"mechanism": mechanism, "parameters": {}}
            policies.change_policy(self.workshop.services.database, name, changes)
        except ConflictError:
            assert self.workshop.run(self.workshop.active_run(name)).state != "queued"
        except PlanError:
            assert mechanism == "tracked_release"

    @invariant()
    def nothing_joins_or_comes_back(self) -> None:
        for name, lineage in self.lineages.items():
            with self.workshop.transaction() as session:
                model = self.workshop.model(name)
                found = TrainingSet(session, model)
                records = [*found.records, *found.held_out]
                assert {r.seq for r in records} == self._seqs_of(lineage.members)
                gone = {r.seq for r in records if r.forgotten_epoch is not None}
                assert gone == self._seqs_of(lineage.gone)
                batches = found.batches(HEAD["batch_size"])
                assert self.batches.setdefault(name, batches) == batches
                shape_of(session, model, found)

    @invariant()
    def no_request_fails(self) -> None:
        for request in self.named:
            assert self.workshop.request(request).state != "failed"

    def _require_certificate(self, version: VersionRow, pairs: set[tuple[str, str]]) -> None:
        with self.workshop.transaction() as session:
            envelope = repository.certificate(session, version.certificate_id).envelope
            query = select(ForgottenRecordRow)
            rows = session.scalars(query).all()
        forgotten = statement_of(envelope)["predicate"]["forgotten"]
        named = {(request, self.seqs[i]) for request, i in pairs}
        commitments = sorted(r.commitment for r in rows if (r.request_id, r.record_seq) in named)
        assert forgotten["records"] == len({i for _, i in pairs})
        assert forgotten["requests"] == len({request for request, _ in pairs})
        assert forgotten["commitments_root"] == merkle.root(commitments).hex()
        check_statement(
            base64.b64decode(json.loads(envelope)["payload"]),
            weights=self.workshop.services.blobs.read(version.blob_id),
        )

    def _learned(self, name: str) -> set[str]:
        """Return the members that may have influenced a model's weights."""
        with self.workshop.transaction() as session:
            training = {r.seq for r in TrainingSet(session, self.workshop.model(name)).records}
        members = self.lineages[name].members
        everything = name.startswith("upload")
        return {i for i in members if everything or self.seqs[i] in training}

    def _seqs_of(self, ids: set[str]) -> set[int]:
        return {self.seqs[i] for i in ids}

    def _note_seqs(self) -> None:
        with self.workshop.transaction() as session:
            for i in record_ids(self.pushed):
                if i not in self.seqs:
                    self.seqs[i] = self.workshop.record(session, i).seq


def test_no_event_changes_which_records_a_lineage_was_trained_on(
    services: Services, app_database: Engine
) -> None:
    run_state_machine_as_test(
        lambda: Lives(services, app_database),
        settings=settings(max_examples=20, stateful_step_count=20, deadline=None, phases=_PHASES),
    )
