"""One run from lease to publication, in this process."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import safetensors.numpy
import torch
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError, OperationalError

from app.domain.errors import (
    LeaseLostError,
    ObjectStoreError,
    RunFailedError,
    RunInterruptedError,
    SealedStateError,
    WriteRefusedError,
)
from app.domain.states import BlobState
from app.evidence.certificates import verification
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.tables import CertificateRow
from app.ledger import publication, runs, selections
from app.runtime.database import Database
from app.runtime.processes.stopping import StopSignal
from app.storage.tables import BlobRow
from tests.support.patience import PATIENCE_S, until
from tests.support.representatives import mostly_nightly
from tests.support.workshop import RECIPE, record_ids
from workers import run as run_module
from workers.leases import outages as patience
from workers.leases.attempts import is_permanent
from workers.leases.lease import Lease
from workers.mechanisms import lineage
from workers.noise.generators import SecureNoise
from workers.run import execute
from workers.seal.sealed import Sealed


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(patience, "_DELAY_S", 0.01)


def outage():
    return OperationalError("SELECT", {}, Exception("server closed the connection"))


def lease_of(workshop, stop=None):
    database = workshop.services.database
    return Lease.take(database, workshop.active_run(), lease_s=30.0, stop=stop or StopSignal())


def carry_out(workshop):
    lease = lease_of(workshop)
    with lease:
        execute(workshop.services, lease)
    return lease


def reports_of(lease):
    """Record everything that a lease is told."""
    told = []
    report = lease.report
    lease.report = lambda **progress: (told.append(progress), report(**progress))[1]
    return told


def blobs(workshop):
    with workshop.transaction() as session:
        rows = session.query(BlobRow).filter(BlobRow.kind == "weights")
        return sorted(BlobState(row.state) for row in rows)


def test_training_ends_with_a_certified_version(workshop):
    workshop.define()
    lease = carry_out(workshop)
    run = workshop.run(lease.run_id)
    assert run.state == "published"
    assert set(run.phase_seconds) >= {"loading", "training", "unlearning", "fine_tuning"}
    assert workshop.model().head_version_id is not None
    assert blobs(workshop) == [BlobState.LIVE]


def test_a_recipe_with_everything_ends_with_a_certified_version(workshop):
    workshop.define(
        recipe=RECIPE.to_json()
        | {
            "optimizer": "adamw",
            "learning_rate": 0.01,
            "schedule": "cosine",
            "warmup_fraction": 0.2,
            "micro_batches": 2,
            "clip_norm": 1.0,
            "precision": "bfloat16",
            "groups": [{"parameters": "*.bias", "weight_decay": 0.0}],
        }
    )
    lease = carry_out(workshop)
    assert workshop.run(lease.run_id).state == "published"


def test_a_group_without_parameters_fails_before_a_record_is_read(workshop, monkeypatch):
    monkeypatch.setattr(run_module, "load_records", lambda *_, **__: pytest.fail("read records"))
    groups = [{"parameters": "encoder.*", "learning_rate": 0.1}]
    workshop.define(recipe=RECIPE.to_json() | {"groups": groups})
    with pytest.raises(RunFailedError, match=r"encoder\.\*") as raised:
        carry_out(workshop)
    assert is_permanent(raised.value)


def test_no_loss_is_told_before_the_target_is_met(workshop):
    workshop.define()
    lease = lease_of(workshop)
    told = reports_of(lease)
    with lease:
        execute(workshop.services, lease)
    phase, by_phase = None, {}
    for progress in told:
        phase = progress.get("phase", phase)
        by_phase.setdefault(phase, []).append(progress)
    sealed = by_phase["loading"] + by_phase["training"] + by_phase["unlearning"]
    assert all(progress.get("loss") is None for progress in sealed)
    names = {name for progress in sealed for name in progress}
    assert names <= {"phase", "step", "total_steps", "epsilon", "loss"}
    epsilons = [p["epsilon"] for p in by_phase["unlearning"] if "epsilon" in p]
    assert epsilons[-1] <= 1.0
    assert all(epsilon > 1.0 for epsilon in epsilons[:-1])
    assert any(progress.get("loss") is not None for progress in by_phase["fine_tuning"])


def test_the_published_weights_are_those_of_the_checkpoint(workshop):
    workshop.define()
    carry_out(workshop)
    model = workshop.model()
    with workshop.transaction() as session:
        version = publication.registry.head_version(session, model)
        content = workshop.services.blobs.read(version.blob_id)
    tensors = safetensors.numpy.load(content)
    assert sum(tensor.size for tensor in tensors.values()) == 2 * 2 + 2


def test_a_forgotten_record_is_not_read(workshop, monkeypatch):
    workshop.define()
    carry_out(workshop)
    train, _ = workshop.split()
    workshop.forget(train[0])
    workshop.dispatch()
    seen = []
    load = run_module.load_records

    def watch(services, lease, model, **more):
        data = load(services, lease, model, **more)
        seen.extend(data.retain.inputs[:, 0].int().tolist())
        return data

    monkeypatch.setattr(run_module, "load_records", watch)
    carry_out(workshop)
    assert len(seen) == len(train) - 1
    assert int(train[0].removeprefix("record-")) not in seen


def test_outages_while_loading_and_publishing_are_outlasted(workshop, monkeypatch):
    workshop.define()
    services = workshop.services
    failures = dict.fromkeys(("begin", "reserve", "fill", "publish"), 2)

    def flaky(name, work):
        def attempt(*args, **kwargs):
            if failures[name]:
                failures[name] -= 1
                raise outage()
            return work(*args, **kwargs)

        return attempt

    monkeypatch.setattr(selections, "begin", flaky("begin", selections.begin))
    monkeypatch.setattr(runs, "reserve_blob", flaky("reserve", runs.reserve_blob))
    monkeypatch.setattr(services.blobs, "fill", flaky("fill", services.blobs.fill))
    monkeypatch.setattr(publication, "publish", flaky("publish", publication.publish))
    lease = carry_out(workshop)
    assert failures == {"begin": 0, "reserve": 0, "fill": 0, "publish": 0}
    run = workshop.run(lease.run_id)
    assert (run.state, run.attempt) == ("published", 1)
    assert blobs(workshop) == [BlobState.LIVE]


def test_a_clock_that_is_set_back_during_a_run_fails_nothing(workshop):
    workshop.define()
    lease = lease_of(workshop)
    with lease:
        with workshop.transaction() as session:
            session.execute(text("UPDATE runs SET started_at = started_at + interval '5 h'"))
        execute(workshop.services, lease)
    with workshop.transaction() as session:
        envelope = session.scalars(select(CertificateRow.envelope)).one()
    times = statement_of(envelope)["predicate"]["times"]
    assert times["started_at"] == times["certified_at"]


def is_lost(lease):
    try:
        lease.report()
    except LeaseLostError:
        return True
    return False


def test_a_commit_whose_answer_is_lost_publishes_once(workshop, monkeypatch):
    """Even where the heartbeat finds the run over before publishing is tried again."""
    workshop.define()
    database = workshop.services.database
    publish, transaction = publication.publish, type(database).transaction
    published = []
    lease = lease_of(workshop)

    def remember(*args, **kwargs):
        published.append(publish(*args, **kwargs).id)
        return published[-1]

    @contextmanager
    def losing_one_answer(self):
        with transaction(self) as session:
            yield session
        if len(published) == 1 and threading.current_thread() is threading.main_thread():
            published.append("lost")
            until(lambda: is_lost(lease))
            raise outage()

    monkeypatch.setattr(publication, "publish", remember)
    monkeypatch.setattr(type(database), "transaction", losing_one_answer)
    with lease:
        execute(workshop.services, lease)
    assert published == [published[0], "lost", published[0]]
    assert workshop.run(lease.run_id).state == "published"
    assert blobs(workshop) == [BlobState.LIVE]


def test_a_run_that_was_taken_during_an_outage_is_not_published(workshop, monkeypatch):
    workshop.define()
    publish = publication.publish
    lease = lease_of(workshop)
    tried = []

    def away_for_once(*args, **kwargs):
        tried.append(kwargs["fencing_token"])
        if len(tried) == 1:
            with workshop.transaction() as other:
                row = runs.holder(other, lease.run_id, lease.fencing_token)
                runs.give_up_attempt(other, row, reason="silent", permanent=False, max_attempts=3)
            raise outage()
        return publish(*args, **kwargs)

    monkeypatch.setattr(publication, "publish", away_for_once)
    with lease, pytest.raises(LeaseLostError):
        execute(workshop.services, lease)
    assert tried == [lease.fencing_token] * 2
    assert workshop.run(lease.run_id).state == "queued"
    assert workshop.model().head_version_id is None
    assert blobs(workshop) == [BlobState.DOOMED]


def test_a_worker_told_to_stop_does_not_wait_for_postgres_to_publish(workshop, monkeypatch):
    workshop.define()
    stop = StopSignal()
    lease = lease_of(workshop, stop)

    def away(*_args, **_kwargs):
        stop.set()
        raise outage()

    monkeypatch.setattr(publication, "publish", away)
    with lease, pytest.raises(RunInterruptedError):
        execute(workshop.services, lease)
    assert workshop.model().head_version_id is None


def test_a_run_that_another_worker_took_publishes_nothing_and_leaves_no_blob(workshop, monkeypatch):
    workshop.define()
    publish = publication.publish

    def overtaken(session, *args, **kwargs):
        with workshop.transaction() as other:
            row = runs.holder(other, kwargs["run_id"], kwargs["fencing_token"])
            runs.give_up_attempt(other, row, reason="silent", permanent=False, max_attempts=3)
        return publish(session, *args, **kwargs)

    monkeypatch.setattr(publication, "publish", overtaken)
    lease = lease_of(workshop)
    with lease, pytest.raises(LeaseLostError):
        execute(workshop.services, lease)
    assert workshop.model().head_version_id is None
    assert blobs(workshop) == [BlobState.DOOMED]


@pytest.mark.parametrize(
    "phase", mostly_nightly(["training", "unlearning", "fine_tuning"], "unlearning")
)
def test_a_run_is_interrupted_between_two_steps(workshop, phase):
    workshop.define()
    stop = StopSignal()
    lease = lease_of(workshop, stop)
    report = lease.report

    def stop_in_phase(**progress):
        report(**progress)
        if progress.get("phase") == phase:
            stop.set()

    lease.report = stop_in_phase
    with lease, pytest.raises(RunInterruptedError):
        execute(workshop.services, lease)
    assert workshop.model().head_version_id is None
    assert blobs(workshop) == []


@pytest.mark.parametrize("phase", mostly_nightly(["training", "unlearning"], "unlearning"))
def test_a_sealed_phase_that_would_write_a_file_fails_for_good(
    workshop, monkeypatch, tmp_path, phase
):
    workshop.define()
    lease = lease_of(workshop)
    report = lease.report

    def write(**progress):
        report(**progress)
        if lease._progress.get("phase") == phase and progress.get("step"):
            (tmp_path / "weights").write_bytes(b"secret")

    lease.report = write
    with lease, pytest.raises(WriteRefusedError) as refused:
        execute(workshop.services, lease)
    assert is_permanent(refused.value)
    assert not (tmp_path / "weights").exists()
    (tmp_path / "weights").write_bytes(b"the phase is over")


@pytest.mark.parametrize("fails", [False, True])
def test_noise_and_weights_are_overwritten_however_the_run_ends(workshop, monkeypatch, fails):
    workshop.define()
    noises, seals = [], []

    class Watched(SecureNoise):
        __slots__ = ()

        def __init__(self, device):
            super().__init__(device)
            noises.append(self)

    def watched(*args, **kwargs):
        seals.append(Sealed(*args, **kwargs))
        return seals[-1]

    monkeypatch.setattr(lineage, "SecureNoise", Watched)
    monkeypatch.setattr(lineage, "Sealed", watched)
    if fails:
        monkeypatch.setattr(lineage, "rule_of", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            carry_out(workshop)
    else:
        carry_out(workshop)
    for use in (lambda: noises[0].add_(torch.zeros(1, dtype=torch.float64), 1.0), seals[0].open):
        with pytest.raises(SealedStateError):
            use()


def test_without_records_to_learn_from_the_reason_says_what_to_do(workshop):
    workshop.define()
    workshop.forget(*record_ids())
    lease = lease_of(workshop)
    with lease, pytest.raises(RunFailedError, match="push more records"):
        execute(workshop.services, lease)


@pytest.mark.parametrize("failure", [outage(), ObjectStoreError("no answer")])
def test_patience_ends(monkeypatch, failure):
    monkeypatch.setattr(patience, "_PATIENCE_S", 0.0)

    def away():
        raise failure

    with pytest.raises(type(failure)):
        patience.outlast_outages(lambda: None, away)


def test_the_patience_is_counted_from_the_failure_and_not_from_the_work(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    tried = []

    def work():
        tried.append(1)
        now[0] += patience._PATIENCE_S + 1
        if len(tried) == 1:
            raise ObjectStoreError("the connection broke at the end of a long upload")
        return "done"

    assert patience.outlast_outages(lambda: None, work) == "done"


def test_a_transaction_that_postgres_ended_because_it_stood_still_is_tried_again(services):
    database = Database(services.settings.database_url, idle_in_transaction_s=1.0)
    pauses_s = [2.0]

    def work():
        with database.transaction() as session:
            first = session.scalar(text("SELECT 1"))
            time.sleep(pauses_s.pop() if pauses_s else 0.0)
            return first + session.scalar(text("SELECT 2"))

    assert patience.outlast_outages(lambda: None, work) == 3
    assert pauses_s == []
    database.dispose()


@pytest.mark.parametrize(
    "failure", [KeyError("broken"), IntegrityError("INSERT", {}, Exception("broken"))]
)
def test_other_errors_are_not_waited_out(failure):
    tried = []

    def broken():
        tried.append(1)
        raise failure

    with pytest.raises(type(failure), match="broken"):
        patience.outlast_outages(lambda: None, broken)
    assert tried == [1]


def test_a_check_ends_the_waiting():
    def lost():
        raise LeaseLostError("lost")

    def away():
        raise outage()

    with pytest.raises(LeaseLostError):
        patience.outlast_outages(lost, away)


def test_checking_a_certificate_holds_up_no_request(workshop, monkeypatch):
    """To compute a guarantee again takes up to seconds: no lane and no log is held meanwhile."""
    workshop.train()
    train = workshop.split()[0]
    workshop.forget(train[0])
    workshop.dispatch()
    check, accepted = verification.check_guarantee, []

    def slow(*args):
        if not accepted:
            with ThreadPoolExecutor(1) as other:
                accepted.append(other.submit(workshop.forget, train[1]).result(PATIENCE_S))
        return check(*args)

    monkeypatch.setattr(verification, "check_guarantee", slow)
    lease = carry_out(workshop)
    assert workshop.run(lease.run_id).state == "published"
    assert workshop.request(accepted[0]).state == "accepted"


def test_a_certificate_issued_while_a_draft_is_checked_has_it_drafted_again(workshop, monkeypatch):
    """The chain of certificates has no fork, and what is signed is what was checked."""
    workshop.train()
    train, held_out = workshop.split()
    workshop.forget(train[0])
    workshop.dispatch()
    check, checked = verification.check_guarantee, []

    def meanwhile(*args):
        checked.append(None)
        if len(checked) == 1:
            workshop.forget(held_out[0])
        return check(*args)

    monkeypatch.setattr(verification, "check_guarantee", meanwhile)
    lease = carry_out(workshop)
    assert workshop.run(lease.run_id).state == "published"
    assert len(checked) == 2
    with workshop.transaction() as session:
        query = select(CertificateRow).order_by(CertificateRow.number)
        rows = session.scalars(query).all()
    said = [statement_of(row.envelope)["predicate"] for row in rows]
    named = [each["previous_certificate"] for each in said]
    assert named == [None, *(row.sha256 for row in rows[:-1])]
    times = [each["times"]["certified_at"] for each in said]
    assert times == sorted(times)


def test_a_cancelled_run_stops_and_publishes_nothing(workshop, monkeypatch):
    workshop.define()
    lease = lease_of(workshop)
    report = lease.report

    def cancelling(**progress):
        report(**progress)
        if progress.get("phase") == "unlearning":
            with workshop.transaction() as session:
                runs.cancel_run(session, lease.run_id)
            until(lambda: is_lost(SimpleNamespace(report=lambda: report(step=1))))

    monkeypatch.setattr(lease, "report", cancelling)
    with lease, pytest.raises(LeaseLostError):
        execute(workshop.services, lease)
    assert workshop.run(lease.run_id).state == "cancelled"
    assert workshop.model().head_version_id is None
    assert set(blobs(workshop)) <= {BlobState.DOOMED}
