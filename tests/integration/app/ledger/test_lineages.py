"""Membership is a fact about a lineage: random histories of several models against plain sets."""

import base64
import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Engine, select

from app.client.download import bundle_bytes
from app.domain.errors import ConflictError, GoneError, LeaseLostError, PlanError
from app.domain.states import UNMET_OBLIGATION_STATES
from app.evidence.certificates.bundle import read_bundle
from app.evidence.certificates.growth import check_growth
from app.evidence.certificates.receipts import Receipt, check_receipt
from app.evidence.certificates.schema import read_statement
from app.evidence.certificates.signing import payload_of, statement_of
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.verification import check_statement
from app.ledger import publication, runs
from app.ledger.certificates import bundles, issuing
from app.ledger.models import policies
from app.ledger.tables import AccountedRequestRow, ForgottenRecordRow, ObligationRow
from app.operations.schema import all_tables
from app.registry import counts
from app.registry.datasets.tables import RecordRow
from app.registry.forecasts import Occasion
from app.registry.membership import membership_at
from app.registry.tables import VersionRow
from app.registry.training_set import TrainingSet
from app.services import Services
from tests.support import trees
from tests.support.emptying import empty
from tests.support.logbook import faults
from tests.support.salts import salt_of
from tests.support.workshop import RECORDS, Held, Workshop, batches_of, record_ids

HEAD = {"epochs": 3, "batch_size": 4, "held_out_fraction": 0.25}
KINDS = {
    "tracked_release": {"architecture": "linear_head", "recipe": HEAD},
    "noisy_release": {
        "architecture": "linear_head",
        "recipe": HEAD,
        "mechanism": "tracked_release",
        "epsilon": 20.0,
        "parameters": {"noise_std": 5.0},
    },
    "projected_noisy_sgd": {"architecture": "linear_head", "recipe": HEAD},
    "gradient_clipping": {},
    "exact_training": {"architecture": "linear_head", "recipe": HEAD},
    "retraining": {},
    "dp_sgd": {"epsilon": 8.0},
    "upload": {"upload": True},
}


MODELS = 5
# Few enough that requests meet; the last ones are there once they are pushed.
IDS = st.sets(st.sampled_from(record_ids(8) + record_ids(3, first=RECORDS)), min_size=1, max_size=3)
# Shrinking takes minutes here; a failure's last steps say enough.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@dataclass
class Lineage:
    """What a plain model of a lineage remembers: numbers of records, and who named which.

    Attributes:
        members: what its training read.
        gone: those of them that it has to be without, for ever.
        pairs: requests that named a member since, with its number.
        covered: what the published head is without.
        before: those of ``gone`` that were gone when its weights were last trained from nothing.
        told: those of ``pairs`` that the lineage's certificates account for.
    """

    members: set[int]
    gone: set[int] = field(default_factory=set)
    pairs: set[tuple[str, int]] = field(default_factory=set)
    covered: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    told: set[tuple[str, int]] = field(default_factory=set)
    has_head: bool = False

    def forget(self, request: str, named: set[int]) -> None:
        self.gone |= named & self.members
        self.pairs |= {(request, seq) for seq in named & self.members}


class Lineages(RuleBasedStateMachine):
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
        self.stored: dict[str, int] = {}  # numbers of records that are not forgotten, by their ids
        self.pushed_as: dict[str, set[int]] = {}  # those of all that were pushed with an id
        self.erased: set[int] = set()
        self.ids: dict[str, set[str]] = {}  # by request
        self.named: dict[str, set[int]] = {}
        self.cancelled: set[str] = set()
        self.known: list[str] = []  # models, trained or not
        self.lineages: dict[str, Lineage] = {}  # of heads and brought weights
        self.trainings: dict[str, Lineage] = {}  # those that have read their records
        self.archived: set[str] = set()
        self.batches: dict[str, dict[int, int]] = {}
        self.rows: dict[int, RecordRow] = {}

    @initialize(target=names, kind=st.sampled_from(sorted(KINDS)))
    def first_model(self, kind: str) -> str:
        """Have something to lose from the start."""
        self._note(set(record_ids()))
        return self.define(kind, trained=True)

    @rule(count=st.integers(1, 4))
    def push(self, count: int) -> None:
        self.workshop.push(count, first=self.pushed)
        self.pushed += count
        self._note(set(record_ids(count, first=self.pushed - count)))

    @rule(ids=IDS)
    def push_again(self, ids: set[str]) -> None:
        """Push the same content: those that are forgotten are new records."""
        ids = self._known(ids)
        new = ids - self.stored.keys()
        result = self.workshop.push_again(*sorted(ids))
        held = result.already_present + len(result.changed_rows)
        assert (result.added, held) == (len(new), len(ids - new))
        self._note(new)

    @rule(target=requests, ids=IDS)
    def replace(self, ids: set[str]) -> Any:
        """Push other content: those that are stored are forgotten, by a request."""
        ids = self._known(ids)
        changed = ids & self.stored.keys()
        result = self.workshop.replace(*sorted(ids))
        assert (result.added, len(result.replaced_rows)) == (len(ids - changed), len(changed))
        assert (result.forget_request is None) == (not changed)
        if result.forget_request is not None:
            self._forgotten(result.forget_request, changed)
        self._note(ids)
        return multiple() if result.forget_request is None else result.forget_request

    @precondition(lambda self: len(self.known) < MODELS)
    @rule(target=names, kind=st.sampled_from(sorted(KINDS)), trained=st.booleans())
    def define(self, kind: str, trained: bool) -> str:
        name = f"{kind}-{len(self.known)}"
        self.known.append(name)
        mechanism = "gradient_clipping" if kind == "upload" else kind
        self.workshop.define(name, **{"mechanism": mechanism, **KINDS[kind]})
        if kind == "upload":
            self.workshop.upload(name)
            everything = set(self.rows)
            gone = everything - set(self.stored.values())
            pairs = {(request, seq) for request, named in self.named.items() for seq in named}
            self.lineages[name] = Lineage(everything, gone, pairs)
        if trained:
            self.publish(self.begin(name))
        return name

    @rule(target=going, name=names)
    def begin(self, name: str) -> tuple[str, Held, set[int], set[tuple[str, int]]] | None:
        """Start the model's waiting run; its choice of records is the plain model's."""
        self.workshop.dispatch()
        run_id = self.workshop.active_run(name)
        if run_id is None or self.workshop.run(run_id).state != "queued":
            return None
        held = self.workshop.lease(name)
        selection = self.workshop.begin(held)
        lineage = self.lineages.get(name)
        if self.workshop.run(run_id).kind == "train":
            lineage = self.trainings[name] = Lineage(set(self.stored.values()))
        assert lineage is not None
        left = lineage.members - lineage.gone
        assert selection.retain | selection.held_out == left
        assert not selection.retain & selection.held_out
        return name, held, set(lineage.gone), set(lineage.pairs)

    @rule(run=consumes(going))
    def publish(self, run: tuple[str, Held, set[int], set[tuple[str, int]]] | None) -> None:
        """Publish it; its certificate says what the plain model says, and holds."""
        if run is None:
            return
        name, held, gone, pairs = run
        if self._is_over(held):
            with pytest.raises(LeaseLostError), self.workshop.transaction() as session:
                publication.publish(
                    session,
                    self.workshop.services.signer,
                    run_id=held.run_id,
                    fencing_token=held.token,
                    result=Mock(),
                    check=lambda _: None,
                    examine=lambda _: None,
                )
            return
        owed = self._unmet(name)
        version = self.workshop.publish(held)
        lineage = self.lineages[name] = self.trainings.pop(name, None) or self.lineages[name]
        lineage.covered, lineage.told, lineage.has_head = gone, lineage.told | pairs, True
        learned = self._learned(name, lineage)
        told = {(r, i) for r, i in lineage.told if i in learned}
        mechanism = self._require_certificate(version, told)
        self._require_history(name, lineage, mechanism)
        if self.workshop.run(held.run_id).kind == "train":
            self.batches.pop(name, None)
            self._require_answers(version, owed, learned)
        else:
            assert {request for request, _ in pairs}.isdisjoint(self._unmet(name))

    @rule(run=consumes(going), how=st.sampled_from(["dies", "fails", "is cancelled"]))
    def lose(self, run: tuple[str, Held, set[int], set[tuple[str, int]]] | None, how: str) -> None:
        """Have a run end without a version: it waits for another worker, or is over."""
        if run is None or self._is_over(run[1]):
            return
        name, held, _, _ = run
        is_training = self.trainings.pop(name, None) is not None
        if how == "is cancelled":
            with self.workshop.transaction() as session:
                runs.cancel_run(session, held.run_id)
        else:
            self.workshop.give_up(held, permanent=how == "fails", attempts=1000)
        if is_training and how != "dies":  # only what the version before learned is still owed
            learned = self._learned(name, self.lineages.get(name, Lineage(set())))
            assert all(self.named[request] & learned for request in self._unmet(name))

    @rule(named=IDS, later=IDS, name=names)
    def forget_in_vain(self, named: set[str], later: set[str], name: str) -> None:
        """Have a run fail that a request waits for, and the next one answer it, too."""
        self.forget(named)
        self.lose(self.begin(name), "fails")
        self.forget(later)
        self.publish(self.begin(name))

    @rule(name=names)
    def retrain(self, name: str) -> None:
        """Ask for a new training; the version before stays what it is until it is published."""
        before = self.workshop.active_run(name)
        try:
            self.workshop.retrain(name)
        except GoneError:
            assert name in self.archived
        except ConflictError:
            assert before is not None or name.startswith("upload") or not self.stored

    @rule(name=names)
    def archive(self, name: str) -> None:
        """Archive a model: nothing is left of it, and it owes nothing."""
        try:
            self.workshop.archive(name)
        except GoneError:
            assert name in self.archived
        self.archived.add(name)
        self.lineages.pop(name, None)
        self.trainings.pop(name, None)
        assert not self._unmet(name)
        assert self.workshop.active_run(name) is None

    @rule(target=requests, named=IDS)
    def forget(self, named: set[str]) -> str:
        ids = self._known(named)
        request = self.workshop.forget(*ids)
        self._forgotten(request, ids)
        return request

    def _known(self, ids: set[str]) -> set[str]:
        return ids & self.pushed_as.keys() or {"record-0"}

    def _forgotten(self, request: str, ids: set[str]) -> None:
        """Note a new request; what each model owes it is what the plain model says."""
        named = {seq for each in ids for seq in self.pushed_as[each]}
        self.ids[request], self.named[request] = ids, named
        for each in ids:
            self.stored.pop(each, None)
        owed = {o.model_id: o.state for o in self.workshop.obligations(request)}
        nothing = Lineage(set())
        for name in self.lineages.keys() | self.trainings.keys():
            lineage = self.lineages.get(name, nothing)
            training = self.trainings.get(name, nothing)
            for each in (lineage, training):
                each.forget(request, named)
            state = owed.pop(self.workshop.model(name).id, None)
            uncovered = self._learned(name, lineage) & lineage.gone - lineage.covered
            if named & (uncovered | self._learned(name, training)):
                if state == "certified":  # the head's noise covers all that is forgotten by now
                    self._require_covering(name, lineage, request)
                    continue
                assert state == "open", name
            elif named & lineage.members and lineage.has_head:
                assert state == "certified", name
                self._require_told(name, lineage, request)
            else:
                assert state is None, name
        assert not owed

    @rule(named=IDS, kind=st.none() | st.sampled_from(sorted(KINDS)))
    def change_of_mind(self, named: set[str], kind: str | None) -> None:
        """Forget, cancel, and push again; a model may be trained in between."""
        request = self.forget(named)
        if kind is not None and len(self.known) < MODELS:
            self.define(kind, trained=True)
        self.cancel(request)
        self.push_again(named)

    @rule(request=requests)
    def cancel(self, request: str) -> None:
        state = self.workshop.request(request).state
        unmet = self._unmet_of(request)
        try:
            with self.workshop.transaction() as session:
                self.workshop.services.forget_requests.cancel(session, request)
        except ConflictError:
            assert state != "accepted"
            return
        assert state == "accepted"
        assert self._unmet_of(request) == unmet
        self.cancelled.add(request)

    @rule()
    def work(self) -> None:
        """Have all models see to what they owe."""
        for name in list(self.known):
            self.publish(self.begin(name))
            waiting = self._unmet(name) - self._failed()
            assert not waiting or self.workshop.active_run(name) is not None

    @rule(request=requests)
    def retry(self, request: str) -> None:
        """Try a failed request again; the next run of a model would answer it, too."""
        failed = request in self._failed()
        try:
            with self.workshop.transaction() as session:
                self.workshop.services.forget_requests.retry(session, request)
        except ConflictError:
            assert not failed

    @rule()
    def erase(self) -> None:
        self.workshop.services.clean_up()
        for request, named in self.named.items():
            row = self.workshop.request(request)
            assert (row.completed_at is None) == bool(self._unmet_of(request))
            assert (row.state == "cancelled") == (request in self.cancelled)
            if row.completed_at is not None:
                self.erased |= named
        assert self.erased.isdisjoint(self.stored.values())
        with self.workshop.transaction() as session:
            erased = select(RecordRow.seq).where(RecordRow.erased_at.is_not(None))
            assert set(session.scalars(erased)) == self.erased

    @rule(name=names, mechanism=st.sampled_from(["retraining", "tracked_release"]))
    def patch(self, name: str, mechanism: str) -> None:
        try:
            changes = {"mechanism": mechanism, "parameters": {}}
            policies.change_policy(self.workshop.services.database, name, changes)
        except GoneError:
            assert name in self.archived
        except ConflictError:
            assert self.workshop.run(self.workshop.active_run(name)).state != "queued"
        except PlanError:
            assert mechanism == "tracked_release" or name.startswith("upload")

    @invariant()
    def nothing_joins_or_comes_back(self) -> None:
        for name, lineage in self.lineages.items():
            with self.workshop.transaction() as session:
                model = self.workshop.model(name)
                found = TrainingSet(session, model)
                records = found.records, found.held_out
                members = {seq for each in records for seq in each.seqs.tolist()}
                retained = {seq for each in records for seq in each.retained.tolist()}
                assert members == lineage.members
                assert members - retained == lineage.gone
                batches = batches_of(found, HEAD["batch_size"], begun_at_epoch=0)
                assert self.batches.setdefault(name, batches) == batches
                begun, (learned, out) = issuing.begun_at(model), records
                numbers = (
                    *(len(learned.seqs), found.read(begun), found.retained),
                    *(len(out.seqs), len(out.retained)),
                )
                assert counts.total(session, model) == (0, *numbers)
                assert Occasion.of(session, model) == Occasion.of(session, model, found)

    @invariant()
    def a_request_fails_with_a_model(self) -> None:
        for request in self.named:
            is_failed = self.workshop.request(request).state == "failed"
            assert is_failed == (request in self._failed() - self.cancelled)

    def _require_told(self, name: str, lineage: Lineage, request: str) -> None:
        """Check a certificate that a request got at once."""
        model = self.workshop.model(name)
        (owed,) = (o for o in self.workshop.obligations(request) if o.model_id == model.id)
        with self.workshop.transaction() as session:
            version = session.get_one(VersionRow, model.head_version_id)
        named, learned = self.named[request], self._learned(name, lineage)
        if owed.basis == "unlearned":
            assert named & learned <= lineage.covered
            lineage.told |= {(request, seq) for seq in named}
            told = {(r, i) for r, i in lineage.told if i in learned}
            self._require_certificate(version, told, str(owed.certificate_id))
            return
        assert not named & learned
        statement = self._checked(version, str(owed.certificate_id))
        own_words = statement["assumptions"][0]["statement"]
        held_out = not named & self._learned(name, Lineage(set(self.rows)))
        assert ("trained_anew" in statement) == (not held_out)
        assert ("held out: no gradient ever" in own_words) == held_out

    def _require_covering(self, name: str, lineage: Lineage, request: str) -> None:
        """Check a certificate of the same version about all that the lineage has to be without."""
        assert self.workshop.active_run(name) is None
        assert not self._unmet(name)
        with self.workshop.transaction() as session:
            version = session.get_one(VersionRow, self.workshop.model(name).head_version_id)
        (owed,) = (o for o in self.workshop.obligations(request) if o.model_id == version.model_id)
        assert owed.certificate_id == version.certificate_id
        lineage.covered, lineage.told = set(lineage.gone), lineage.told | lineage.pairs
        learned = self._learned(name, lineage)
        assert learned - lineage.gone
        told = {(r, i) for r, i in lineage.told if i in learned}
        mechanism = self._require_certificate(version, told)
        assert mechanism["name"] in ("dp_sgd", "tracked_release", "projected_noisy_sgd")
        self._require_history(name, lineage, mechanism)

    def _require_proofs(self, request: str, ids: set[str]) -> None:
        """Check that a request's receipt fits its certificates, whatever came after them."""
        services = self.workshop.services
        salt = salt_of(services, request)
        receipt = Receipt(salt, len(self.named[request]), tuple(ids), ())
        for owed in self.workshop.obligations(request):
            if owed.certificate_id is None:
                continue
            with self.workshop.transaction() as session:
                certificate = issuing.certificate(session, owed.certificate_id)
                bundle = bundles.bundle_of(
                    session, certificate, signer=services.signer, request_id=request
                )
            statement, _ = read_statement(payload_of(certificate.envelope))
            forgotten = statement.predicate.forgotten
            check_receipt(receipt, read_bundle(bundle_bytes(bundle)).request, forgotten)

    def _require_history(self, name: str, lineage: Lineage, mechanism: dict[str, Any]) -> None:
        """Check that a history forgets, of each batch, what its weights have seen and lost."""
        if mechanism["name"] == "retraining":
            lineage.before = set(lineage.covered)
        lost = self._learned(name, lineage) & lineage.covered - lineage.before
        if mechanism["name"] == "dp_sgd":
            assert mechanism["parameters"]["group_size"] >= max(1, len(lost))
        history = mechanism["parameters"].get("history")
        if history is None:
            return
        with self.workshop.transaction() as session:
            model = self.workshop.model(name)
            batch_of = batches_of(
                TrainingSet(session, model),
                history["recipe"]["batch_size"],
                begun_at_epoch=issuing.begun_at(model),
            )
        told = Counter[int]()
        for event in history["events"]:
            told.update(dict(event.get("forget", ())))
        assert told == Counter(batch_of[seq] for seq in lost)

    def _checked(self, version: VersionRow, certificate_id: str) -> dict[str, Any]:
        with self.workshop.transaction() as session:
            envelope = issuing.certificate(session, certificate_id).envelope
        return check_statement(
            base64.b64decode(json.loads(envelope)["payload"]),
            weights=self.workshop.services.blobs.read(version.blob_id),
        )[1]

    def _require_certificate(
        self, version: VersionRow, pairs: set[tuple[str, int]], certificate_id: str | None = None
    ) -> dict[str, Any]:
        predicate = self._checked(version, certificate_id or version.certificate_id)
        forgotten = predicate["forgotten"]
        assert forgotten["since_version"] == version.since_version
        assert forgotten["records"] == len({i for _, i in pairs})
        assert forgotten["requests"] == len({request for request, _ in pairs})
        self._require_tree(forgotten, version, pairs)
        mechanism: dict[str, Any] = predicate["mechanism"]
        return mechanism

    def _require_tree(
        self, forgotten: dict[str, Any], version: VersionRow, pairs: set[tuple[str, int]]
    ) -> None:
        """Check that the tree has the commitments of exactly these, by request as they came."""
        lineage = (version.model_id, version.since_version)
        with self.workshop.transaction() as session:
            rows = session.scalars(select(ForgottenRecordRow)).all()
            query = select(AccountedRequestRow).order_by(AccountedRequestRow.number)
            order = [
                row.request_id
                for row in session.scalars(query)
                if (row.model_id, row.since_version) == lineage
            ]
        leaves = [
            commitment
            for request in order
            for commitment in sorted(
                row.commitment
                for row in rows
                if row.request_id == request and (request, row.record_seq) in pairs
            )
        ]
        assert len(leaves) == len(pairs)
        assert forgotten["covered"] == {"size": len(leaves), "root": trees.root(leaves).hex()}

    def _require_answers(self, version: VersionRow, owed: set[str], learned: set[int]) -> None:
        """Check that a training has answered exactly the requests for what it did not learn."""
        assert self._unmet(version.model_id) == {r for r in owed if self.named[r] & learned}
        for request in owed - self._unmet(version.model_id):
            (answer,) = (
                o for o in self.workshop.obligations(request) if o.model_id == version.model_id
            )
            assert (answer.state, answer.basis) == ("certified", "excluded_from_training")
            with self.workshop.transaction() as session:
                envelope = issuing.certificate(session, str(answer.certificate_id)).envelope
            payload = base64.b64decode(json.loads(envelope)["payload"])
            check_statement(payload, weights=self.workshop.services.blobs.read(version.blob_id))
            forgotten = json.loads(payload)["predicate"]["forgotten"]
            named = len(self.named[request])
            assert (forgotten["requests"], forgotten["records"]) == (1, named)
            assert forgotten["leaves"] == named

    def _unmet(self, name: str) -> set[str]:
        """Return the requests to which a model, by its name or its id, owes something."""
        model_id = name if name.startswith("model_") else self.workshop.model(name).id
        return {owed.request_id for owed in self._owed() if owed.model_id == model_id}

    def _unmet_of(self, request: str) -> set[str]:
        """Return the ids of the models that still owe a request something."""
        return {owed.model_id for owed in self._owed() if owed.request_id == request}

    def _failed(self) -> set[str]:
        """Return the requests that a model has failed."""
        return {owed.request_id for owed in self._owed() if owed.state == "failed"}

    def _owed(self) -> list[ObligationRow]:
        unmet = select(ObligationRow).where(ObligationRow.state.in_(UNMET_OBLIGATION_STATES))
        with self.workshop.transaction() as session:
            return list(session.scalars(unmet))

    def _is_over(self, held: Held) -> bool:
        run = self.workshop.run(held.run_id)
        return run.state in ("failed", "cancelled") or run.fencing_token != held.token

    def _learned(self, name: str, lineage: Lineage) -> set[int]:
        """Return the members of a lineage that may have influenced its weights."""
        if name.startswith("upload"):
            return lineage.members
        split = membership_at(self.workshop.model(name), through=0, after_epoch=0)
        return {seq for seq in lineage.members if not split.is_held_out(self.rows[seq])}

    def _note(self, ids: set[str]) -> None:
        """Note the records that were pushed now."""
        with self.workshop.transaction() as session:
            for each in ids:
                record = self.workshop.record(session, each)
                assert record.seq not in self.rows
                assert record.forgotten_epoch is None
                self.stored[each], self.rows[record.seq] = record.seq, record
                self.pushed_as.setdefault(each, set()).add(record.seq)

    def teardown(self) -> None:
        """Compare the log with the rows, and every model's certificates with each other."""
        assert faults(self.workshop.services) == []
        with self.workshop.transaction() as session:
            query = select(CertificateRow).order_by(CertificateRow.model_id, CertificateRow.number)
            certificates = session.scalars(query).all()
        for request, ids in self.ids.items():
            self._require_proofs(request, ids)
        before: dict[str, str | None] = {}
        for certificate in certificates:
            predicate = statement_of(certificate.envelope)["predicate"]
            assert predicate["previous_certificate"] == before.get(certificate.model_id)
            before[certificate.model_id] = certificate.sha256
        for old, new in combinations(certificates, 2):
            if old.model_id == new.model_id:
                self._require_growth(old, new)

    def _require_growth(self, old: CertificateRow, new: CertificateRow) -> None:
        """Check that a certificate takes nothing back of an older one, as verifiers do."""
        with self.workshop.transaction() as session:
            bundle = bundles.bundle_of(
                session, new, signer=self.workshop.services.signer, previous=old
            )
        payload, older = (payload_of(each.envelope) for each in (new, old))
        statements = (read_statement(each)[0] for each in (payload, older))
        check_growth(*statements, read_bundle(bundle_bytes(bundle)).growth, old_payload=older)


@pytest.mark.parametrize("histories", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_no_event_changes_which_records_a_lineage_was_trained_on(
    services: Services, app_database: Engine, histories: int
) -> None:
    run_state_machine_as_test(
        lambda: Lineages(services, app_database),
        settings=settings(
            max_examples=histories, stateful_step_count=20, deadline=None, phases=_PHASES
        ),
    )
