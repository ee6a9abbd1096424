"""Ensembles that forget by leaving members out, and are refilled."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain

import numpy as np
import pytest
import safetensors.numpy
from sqlalchemy import Engine, event, select

import expunge
from app.api.forget_requests import Forgetting
from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.errors import ConflictError, GoneError, InvalidInputError, LeaseLostError
from app.domain.scores import warnings_of
from app.domain.states import (
    BlobState,
    MemberState,
    ObligationState,
    RequestState,
    RunKind,
    RunState,
)
from app.evidence.certificates.weights_file import WeightsFile
from app.evidence.log import actor
from app.evidence.log.tables import LogEntryRow
from app.ledger import leaving_out, member_trainings, repository, runs
from app.ledger.certificates import issuing
from app.ledger.member_trainings import HeldMember
from app.ledger.models import policies, retraining
from app.ledger.new_requests import Call, NewForgetRequest
from app.ledger.tables import ForgetRequestRow
from app.registry.tables import ModelRow
from app.runtime import failpoints
from app.runtime.locations import redis_connection
from app.storage.tables import BlobRow
from tests.integration.workers.mechanisms.test_ensembles import (
    forget,
    member_of,
    members,
    tensors_of,
)
from tests.support.exact_heads import (
    carry_out,
    define_backbone,
    give_up_features,
    head_of,
    released,
)
from tests.support.workshop import DATASET, RECIPE, RECORDS, Held
from workers.data import member_records
from workers.data.features import FeatureReader
from workers.data.member_records import MemberRecords
from workers.dispatcher import Dispatcher
from workers.mechanisms.ensembles import run as ensembles
from workers.mechanisms.ensembles.run import EnsembleRun
from workers.queue import open_queue

MEMBERS = 4
MLP = ArchitectureSpec("mlp", {"hidden": [3]})
ENSEMBLE = ArchitectureSpec("ensemble", members=MEMBERS, of=MLP)


@pytest.fixture
def trained(workshop):
    workshop.push(4 * RECORDS, first=RECORDS)
    policy = {"minimum_members": 2, "refill_after_s": None, "refill_at": None}
    workshop.define(architecture=ENSEMBLE, mechanism="auto", **policy)
    carry_out(workshop)
    return workshop


@pytest.fixture
def dispatcher(services):
    return Dispatcher(services, open_queue(redis_connection(services.settings)))


def records_by_member(workshop):
    found = {member: [] for member in range(MEMBERS)}
    train = (workshop.split(first=first)[0] for first in range(0, 5 * RECORDS, RECORDS))
    for record in chain.from_iterable(train):
        found[member_of(workshop, record)].append(record)
    return found


def states(workshop):
    return [each.trained_in or "out" for each in members(workshop)]


def refill(workshop):
    return retraining.refill(workshop.services.database, "model").id


def predicate_of(workshop, request):
    (owed,) = workshop.obligations(request)
    assert owed.state == ObligationState.CERTIFIED
    with workshop.transaction() as session:
        return issuing.predicate_of(session, owed.certificate_id)


def test_a_request_takes_no_gradient_and_the_others_stay_byte_for_byte(trained, monkeypatch):
    old, blob = tensors_of(trained), head_of(trained).blob_id
    monkeypatch.setattr(ensembles, "train_member", lambda *_: pytest.fail("trained"))
    request = forget(trained, records_by_member(trained)[1][0])
    carry_out(trained)
    assert states(trained) == [1, "out", 1, 1]
    new = tensors_of(trained)
    assert sorted(new) == [0, 2, 3]
    for member, own in new.items():
        assert all(np.array_equal(tensor, old[member][name]) for name, tensor in own.items())
    with trained.transaction() as session:
        assert session.get_one(BlobRow, blob).state in (BlobState.DOOMED, BlobState.SHREDDED)
    trained.services.clean_up()
    marker = old[1]["1.weight"].tobytes()
    with trained.transaction() as session:
        kept = [row.id for row in session.query(BlobRow).filter_by(state=BlobState.LIVE)]
    assert head_of(trained).blob_id in kept
    assert not [each for each in kept if marker in trained.services.blobs.read(each)]
    predicate = predicate_of(trained, request)
    assert (predicate["guarantee"]["epsilon"], predicate["guarantee"]["kind"]) == (0.0, "exact")
    assert predicate["members"][1] == {"out_since": 2}
    assert predicate["evaluation"]["not_measured"]
    assert trained.runs()[-1].plan["predicted"]["gradient_computations"] == 0


def test_a_version_without_members_is_loaded_and_predicts(trained, tmp_path):
    forget(trained, records_by_member(trained)[0][0])
    carry_out(trained)
    path = tmp_path / "model-v2.safetensors"
    path.write_bytes(released(trained))
    assert WeightsFile(io.BytesIO(released(trained))).description().out == {0: 2}
    names = safetensors.numpy.load(released(trained))
    assert {name.split(".")[1] for name in names} == {"1", "2", "3"}
    model = expunge.load(path, check=False)
    assert set(model.state_dict()) >= {f"_network.{name}" for name in names}


def test_below_the_floor_as_many_are_trained_as_are_missing(trained):
    records = records_by_member(trained)
    forget(trained, records[0][0], records[1][0])
    carry_out(trained)
    assert states(trained) == ["out", "out", 1, 1]
    request = forget(trained, records[3][0])
    carry_out(trained)
    assert states(trained) == [3, "out", 1, "out"]
    assert predicate_of(trained, request)["members"][3] == {"out_since": 3}


def test_a_request_for_members_that_are_out_is_answered_at_once(trained):
    records = records_by_member(trained)
    forget(trained, records[1][0])
    carry_out(trained)
    request = trained.forget(records[1][1])
    predicate = predicate_of(trained, request)
    assert (predicate["model"]["version"], predicate["forgotten"]["requests"]) == (2, 2)
    assert predicate["members"][1] == {"out_since": 2}
    waits = forget(trained, records[1][2], records[2][0])
    assert trained.obligations(waits)[0].state == ObligationState.OPEN
    carry_out(trained)
    assert states(trained) == [1, "out", "out", 1]
    assert predicate_of(trained, waits)["forgotten"]["requests"] == 3


def test_a_refill_trains_all_that_are_out_on_what_is_left(trained, monkeypatch):
    records, sizes, real = records_by_member(trained), [], ensembles.train_member

    def watched(model, plan, examples, fresh, on_progress):
        sizes.append(len(examples))
        return real(model, plan, examples, fresh, on_progress)

    monkeypatch.setattr(ensembles, "train_member", watched)
    with pytest.raises(ConflictError, match="no member of model 'model' is out"):
        refill(trained)
    forget(trained, records[0][0], records[2][0])
    carry_out(trained)
    covers = head_of(trained).covers_epoch
    run = refill(trained)
    carry_out(trained)
    assert states(trained) == [3, 1, 3, 1]
    assert sizes == [len(records[0]) - 1, len(records[2]) - 1]
    assert (head_of(trained).covers_epoch, trained.run(run).kind) == (covers, RunKind.REFILL)
    assert head_of(trained).evaluation["held_out_records"] > 0


@pytest.mark.parametrize("when", ["train", "put_together"])
def test_requests_that_come_during_a_refill_do_not_wait_for_it(trained, monkeypatch, when):
    """Neither is answered by the refill, nor does it lose what it has trained."""
    records, real, asked = records_by_member(trained), getattr(EnsembleRun, when), []
    forget(trained, records[0][0], records[1][0])
    carry_out(trained)

    def interrupted(self, *args):
        made = real(self, *args)
        if not asked:
            asked.append(trained.forget(records[1][1]))  # of a member that it has trained
            asked.append(forget(trained, records[2][0]))  # of one that is active
            unlearning = next(r for r in trained.runs() if r.state == RunState.QUEUED)
            assert unlearning.kind == RunKind.UNLEARN
            carry_out(trained, run_id=unlearning.id)
            assert states(trained) == ["out", "out", "out", 1]
        return made

    policies.change_policy(trained.services.database, "model", {"minimum_members": 1})
    monkeypatch.setattr(EnsembleRun, when, interrupted)
    refill(trained)
    carry_out(trained)
    at_once, by_run = (predicate_of(trained, request) for request in asked)
    assert (at_once["model"]["version"], by_run["model"]["version"]) == (2, 3)
    assert states(trained) == [4, "out", "out", 1]
    with trained.transaction() as session:
        said = issuing.stated_of(session, head_of(trained))["predicate"]
    assert said["members"][1:3] == [{"out_since": 2}, {"out_since": 3}]
    assert said["forgotten"] == by_run["forgotten"]


def test_a_refill_of_which_every_member_was_named_again_begins_again(trained, monkeypatch):
    """What it trained is never published, and who asked for it sees one run that goes on."""
    records, real, asked = records_by_member(trained), EnsembleRun.train, []
    forget(trained, records[0][0])
    carry_out(trained)

    def interrupted(self):
        made = real(self)
        if not asked:
            asked.append(trained.forget(records[0][1]))
        return made

    monkeypatch.setattr(EnsembleRun, "train", interrupted)
    run = refill(trained)
    with pytest.raises(LeaseLostError, match="forgotten meanwhile"):
        carry_out(trained)
    assert (trained.run(run).state, trained.run(run).attempt) == (RunState.QUEUED, 0)
    assert states(trained) == ["out", 1, 1, 1]
    carry_out(trained)
    assert trained.run(run).state == RunState.PUBLISHED
    assert states(trained) == [3, 1, 1, 1]


def forget_and_erase(workshop, record):
    """Have a record of a member that is out forgotten, and completed at once."""
    request = workshop.forget(record)
    assert predicate_of(workshop, request)
    workshop.services.clean_up()
    assert workshop.request(request).state == RequestState.COMPLETED


@pytest.mark.parametrize("when", ["before_it_reads", "while_it_reads"])
def test_what_is_erased_before_its_member_is_trained_costs_a_refill_nothing(
    trained, monkeypatch, when
):
    records, erased, sizes = records_by_member(trained), [], []
    real, reads, finishes = ensembles.train_member, MemberRecords.of, EnsembleRun._finish
    monkeypatch.setattr(member_records, "_SHARE_HELD", 2**60)  # one member after the other

    def erase(member):
        if not erased:
            erased.append(member)
            forget_and_erase(trained, records[1][0])

    def train(model, plan, examples, fresh, on_progress):
        sizes.append(len(examples))
        return real(model, plan, examples, fresh, on_progress)

    def finish(self, held):
        finishes(self, held)
        if when == "before_it_reads":
            erase(1)

    def read(self, member):
        if when == "while_it_reads" and member == 1:
            erase(member)
        return reads(self, member)

    monkeypatch.setattr(ensembles, "train_member", train)
    monkeypatch.setattr(EnsembleRun, "_finish", finish)
    monkeypatch.setattr(MemberRecords, "of", read)
    policies.change_policy(trained.services.database, "model", {"minimum_members": 1})
    forget(trained, records[0][0], records[1][1], records[2][0])
    carry_out(trained)
    run = refill(trained)
    carry_out(trained)
    assert states(trained) == [3, "out", 3, 1]
    assert sizes == [len(records[0]) - 1, len(records[2]) - 1]
    assert trained.run(run).attempt == 1


def test_a_shard_erased_whole_while_a_refill_computes_features_costs_it_nothing(
    workshop, monkeypatch
):
    define_backbone(workshop)
    workshop.push(4 * RECORDS, first=RECORDS)
    alone = f"record-{5 * RECORDS}"
    workshop.push(1, first=5 * RECORDS)
    architecture = ArchitectureSpec(
        "ensemble", members=MEMBERS, of=MLP, backbone=BackboneUse("public")
    )
    policy = {"minimum_members": 1, "refill_after_s": None, "refill_at": None}
    workshop.define(architecture=architecture, mechanism="auto", **policy)
    carry_out(workshop)
    mine, records = member_of(workshop, alone), records_by_member(workshop)
    other = (mine + 1) % MEMBERS
    forget(workshop, records[mine][0], records[other][0])
    carry_out(workshop)
    give_up_features(workshop)
    waiting, compute = [alone], FeatureReader._computed

    def overtaken(self, source):
        while waiting:
            forget_and_erase(workshop, waiting.pop())
        return compute(self, source)

    monkeypatch.setattr(FeatureReader, "_computed", overtaken)
    run = refill(workshop)
    carry_out(workshop)
    assert not waiting
    assert (workshop.run(run).state, workshop.run(run).attempt) == (RunState.PUBLISHED, 1)
    assert states(workshop)[other] == 3


def test_no_worker_hands_over_what_learned_from_records_that_were_forgotten_since(trained):
    records = records_by_member(trained)
    forget(trained, records[0][0], records[1][0])
    carry_out(trained)
    refill(trained)
    held = trained.lease()
    trained.begin(held)
    with trained.transaction() as session:
        member_trainings.begin(session, held.run_id, held.token, [0, 1])
        first, second = (
            HeldMember.of(member_trainings.take(session, held.run_id, lease_s=30.0))
            for _ in range(2)
        )
    forget_and_erase(trained, records[1][1])
    with trained.transaction() as session:
        assert member_trainings.reserve_blob(session, first)
    with pytest.raises(GoneError), trained.transaction() as session:
        member_trainings.reserve_blob(session, second)
    with trained.transaction() as session:
        member_trainings.give_back(session, second)
        assert member_trainings.take(session, held.run_id, lease_s=30.0) is None
        assert [each.state for each in member_trainings.all_of(session, held.run_id)] == [
            MemberState.LEASED,
            MemberState.DONE,
        ]


def test_a_member_that_was_refilled_without_a_record_is_not_left_out_for_it(trained):
    records = records_by_member(trained)
    forget(trained, records[0][0])
    carry_out(trained)
    refill(trained)
    request = trained.forget(records[0][1], records[1][0])  # out, and active; no run yet
    carry_out(trained, run_id=trained.active_run())
    assert states(trained) == [4, "out", 1, 1]
    predicate = predicate_of(trained, request)
    assert predicate["model"]["version"] == 3
    assert predicate["members"][:2] == [{"out_since": 2}, {"out_since": 3}]
    assert trained.active_run() is None


@pytest.mark.parametrize("reader", ["refill", "leaving_out"])
def test_a_head_that_is_replaced_and_shredded_while_it_is_read_costs_no_attempt(
    trained, monkeypatch, reader
):
    records, stored, met = records_by_member(trained), type(trained.services.blobs), []
    forget(trained, records[0][0])
    carry_out(trained)
    run = refill(trained)
    at_once = partial(trained.services.leave_out_at_once, {trained.model().id: None})

    def replace():
        if reader == "refill":
            forget(trained, records[1][0])
            assert at_once()
        else:
            carry_out(trained, run_id=run)
        trained.services.clean_up()

    def opened(blobs, blob):
        blob_id = blob if isinstance(blob, str) else blob[0].blob_id
        if not met and blob_id == head_of(trained).blob_id:
            met.append(blob_id)
            replace()
        return open_blob(blobs, blob)

    open_blob = stored.open
    if reader == "leaving_out":
        request = forget(trained, records[1][0])
        monkeypatch.setattr(stored, "open", opened)
        assert at_once()
        assert predicate_of(trained, request)["model"]["version"] == 4
    else:
        monkeypatch.setattr(stored, "open", opened)
        carry_out(trained, run_id=run)
    assert met
    assert states(trained) == [4 if reader == "refill" else 3, "out", 1, 1]
    assert trained.run(run).attempt == 1


def test_no_worker_is_needed_for_a_request_while_one_refills(trained, dispatcher, monkeypatch):
    records, real, asked = records_by_member(trained), EnsembleRun.train, []
    forget(trained, records[0][0])
    carry_out(trained)

    def interrupted(self):
        asked.append(trained.forget(records[1][0]))
        assert trained.obligations(asked[0])[0].state == ObligationState.OPEN
        dispatcher._leave_out()
        assert predicate_of(trained, asked[0])["model"]["version"] == 3
        return real(self)

    monkeypatch.setattr(EnsembleRun, "train", interrupted)
    refill(trained)
    carry_out(trained)
    assert states(trained) == [4, "out", 1, 1]


def test_what_failed_once_without_a_worker_is_left_to_one(trained, dispatcher, monkeypatch):
    forget(trained, records_by_member(trained)[0][0])
    carry_out(trained)
    refill(trained)
    request = trained.forget(records_by_member(trained)[1][0])
    at_once = partial(trained.services.leave_out_at_once, {trained.model().id: None})
    with monkeypatch.context() as broken:
        broken.setattr(leaving_out, "publish_checked", fail)
        assert not at_once()
    unlearning = trained.runs()[-1]
    assert (unlearning.state, unlearning.attempt) == (RunState.QUEUED, 0)
    assert not at_once()
    carry_out(trained, run_id=unlearning.id)
    assert predicate_of(trained, request)["members"][1] == {"out_since": 3}


def answered(workshop, record):
    """Return what the API answers to a request for a record."""
    call = Call(NewForgetRequest(DATASET, [record]), workshop.key_id, "key_desk")
    return Forgetting(workshop.services).submit_all([call])


def test_an_answer_that_needs_no_worker_takes_two_commits(trained):
    commits, record = [], records_by_member(trained)[1][0]

    def note(connection):
        commits.append(connection)

    event.listen(Engine, "commit", note)
    try:
        (view,) = answered(trained, record)
    finally:
        event.remove(Engine, "commit", note)
    assert view.state == RequestState.CERTIFIED
    assert states(trained) == [1, "out", 1, 1]
    assert len(commits) == 2


def test_what_cannot_be_begun_with_a_request_is_begun_after_it(trained, monkeypatch):
    read, failed = leaving_out._read_head, []

    def once(*given):
        if not failed:
            failed.append(given)
            raise RuntimeError
        return read(*given)

    monkeypatch.setattr(leaving_out, "_read_head", once)
    (view,) = answered(trained, records_by_member(trained)[1][0])
    assert failed
    assert view.state == RequestState.CERTIFIED
    assert [run.attempt for run in trained.runs()] == [1, 1]
    with trained.transaction() as session:
        assert [row.id for row in session.scalars(select(ForgetRequestRow))] == [view.id]


def test_a_run_that_waits_for_a_worker_is_taken_by_the_next_answer(trained):
    records = records_by_member(trained)
    first = trained.forget(records[1][0])
    trained.dispatch()
    assert trained.runs()[-1].state == RunState.QUEUED
    (view,) = answered(trained, records[2][0])
    assert view.state == trained.request(first).state == RequestState.CERTIFIED
    assert states(trained) == [1, "out", "out", 1]
    assert len(trained.runs()) == 2


@pytest.mark.parametrize("why", ["trains", "policy", "broken"])
def test_what_an_answer_leaves_to_a_worker_is_met_once(trained, monkeypatch, why):
    changes = {"trains": {"minimum_members": 4}, "policy": {"forget": "retrain"}}
    policies.change_policy(trained.services.database, "model", changes.get(why, {}))
    with monkeypatch.context() as broken:
        if why == "broken":
            broken.setattr(leaving_out, "publish_checked", fail)
        (view,) = answered(trained, records_by_member(trained)[1][0])
    assert view.state == trained.request(view.id).state != RequestState.CERTIFIED
    trained.dispatch()
    carry_out(trained)
    assert trained.request(view.id).state == RequestState.CERTIFIED
    assert states(trained) == [1, "out" if why == "broken" else 2, 1, 1]
    assert [run.attempt for run in trained.runs()] == [1, 1]


def test_the_log_names_the_service_and_not_the_caller_it_answered(trained):
    with actor.acting_as("key_desk"):
        trained.forget(records_by_member(trained)[1][0])
        assert trained.services.leave_out_at_once({trained.model().id: None})
    with trained.transaction() as session:
        bodies = [json.loads(body) for body in session.scalars(select(LogEntryRow.body))]
    published = [each["by"] for each in bodies if each["kind"] == "version.published"]
    assert published == [actor.SERVICE] * 2


POINTS = [
    *("at_target", "before_blob_write", "after_blob_write"),
    *("before_publish", "before_commit", "after_publish"),
]


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_anywhere_loses_nothing_and_doubles_nothing(trained, tmp_path, monkeypatch, point):
    monkeypatch.setattr(failpoints, "_DIRECTORY", tmp_path)
    (tmp_path / f"{point}.0.EIO").touch()
    request = trained.forget(records_by_member(trained)[1][0])
    done = trained.services.leave_out_at_once({trained.model().id: None})
    assert not list(tmp_path.glob(f"{point}.*"))
    assert not done
    if trained.active_run() is not None:
        carry_out(trained)
    assert states(trained) == [1, "out", 1, 1]
    assert predicate_of(trained, request)["model"]["version"] == 2
    assert [run.attempt for run in trained.runs()] == [1, 1]
    with trained.transaction() as session:
        live = session.query(BlobRow).filter_by(state=BlobState.LIVE, kind="weights").all()
    assert [row.id for row in live] == [head_of(trained).blob_id]


def fail(*_, **__):
    raise RuntimeError


@pytest.mark.parametrize("why", ["trains", "large", "window", "policy"])
def test_only_what_is_due_small_and_without_a_training_needs_no_worker(trained, why):
    records, changes = records_by_member(trained), {"trains": {"minimum_members": 4}}
    changes |= {"window": {"window_s": 3600.0}, "policy": {"forget": "retrain"}}
    policies.change_policy(trained.services.database, "model", changes.get(why, {}))
    trained.forget(records[0][0])
    named = {trained.model().id: None}
    terms = {"most_bytes": head_of(trained).size_bytes - 1} if why == "large" else {}
    assert not trained.services.leave_out_at_once(named, **terms)
    assert trained.active_run() is None
    if why in ("large", "window"):
        assert trained.services.leave_out_at_once(named, before_its_time=True)
        assert states(trained) == ["out", 1, 1, 1]


@pytest.mark.parametrize("how", ["published", "failed"])
def test_the_end_of_a_refill_hastens_no_request(trained, how):
    records = records_by_member(trained)
    forget(trained, records[0][0])
    carry_out(trained)
    policies.change_policy(trained.services.database, "model", {"window_s": 3600.0})
    refill(trained)
    trained.forget(records[1][0])
    if how == "published":
        carry_out(trained)
    else:
        trained.give_up(trained.lease())
    trained.dispatch()
    assert trained.active_run() is None


def test_requests_and_the_clock_start_a_refill(trained):
    database = trained.services.database
    automatic = retraining.AutomaticRetraining(database)
    forget(trained, records_by_member(trained)[0][0])
    carry_out(trained)
    assert automatic.refill_due() == []
    policies.change_policy(database, "model", {"refill_after_s": 3600.0})
    assert automatic.refill_due() == []
    policies.change_policy(database, "model", {"refill_at": 0.25})
    assert automatic.refill_due() == ["model"]
    assert automatic.refill_due() == []
    carry_out(trained)
    assert states(trained) == [3, 1, 1, 1]
    forget(trained, records_by_member(trained)[1][0])
    carry_out(trained)
    policies.change_policy(database, "model", {"refill_after_s": 0.0, "refill_at": None})
    assert automatic.refill_due() == ["model"]


def test_a_refill_that_failed_is_not_begun_again_by_the_next_request(trained):
    records = records_by_member(trained)
    forget(trained, records[0][0])
    carry_out(trained)
    policies.change_policy(trained.services.database, "model", {"refill_after_s": 0.0})
    automatic = retraining.AutomaticRetraining(trained.services.database)
    assert automatic.refill_due() == ["model"]
    trained.give_up(trained.lease())
    forget(trained, records[1][0])
    carry_out(trained)
    assert automatic.refill_due() == []


def test_what_is_left_out_after_a_refill_was_cancelled_does_not_wait_for_what_was_out_then(trained):
    forget(trained, records_by_member(trained)[0][0])
    carry_out(trained)
    policies.change_policy(trained.services.database, "model", {"refill_at": 0.25})
    automatic = retraining.AutomaticRetraining(trained.services.database)
    with trained.transaction() as session:
        runs.cancel_run(session, refill(trained))
    assert automatic.refill_due() == []
    trained.retrain()
    carry_out(trained)
    assert automatic.refill_due() == []
    forget(trained, records_by_member(trained)[1][0])
    carry_out(trained)
    assert automatic.refill_due() == ["model"]


def test_a_request_whose_run_failed_is_tried_again_after_a_refill_too(trained):
    records = records_by_member(trained)
    forget(trained, records[0][0])
    carry_out(trained)
    request = forget(trained, records[1][0])
    failed = trained.lease()
    trained.give_up(failed)
    refill(trained)
    carry_out(trained)
    assert states(trained) == [3, 1, 1, 1]
    runs.retry_run(trained.services.database, failed.run_id)
    carry_out(trained)
    assert states(trained) == [3, "out", 1, 1]
    assert predicate_of(trained, request)["model"]["version"] == 4


def test_retraining_members_at_once_is_the_policys_other_way(trained):
    policies.change_policy(trained.services.database, "model", {"forget": "retrain"})
    forget(trained, records_by_member(trained)[2][0])
    carry_out(trained)
    assert states(trained) == [1, 1, 2, 1]


def test_an_archive_ends_a_refill_and_the_run_beside_it(trained):
    refill_and_run(trained)
    assert [r.state for r in trained.runs()[-2:]] == [RunState.QUEUED] * 2
    trained.archive()
    assert [r.state for r in trained.runs()[-2:]] == [RunState.CANCELLED] * 2


def refill_and_run(trained):
    """Have a refill wait, and beside it an unlearning run."""
    records = records_by_member(trained)
    forget(trained, records[0][0])
    carry_out(trained)
    refill(trained)
    forget(trained, records[1][0])


def test_an_archive_waits_for_both_runs_before_it_takes_the_model(trained):
    """A worker that publishes holds its run, and then takes the model: neither must fail."""
    refill_and_run(trained)
    unlearning = trained.runs()[-1].id
    with ThreadPoolExecutor() as others, trained.transaction() as session:
        repository.run(session, unlearning, lock=True)
        archive = others.submit(trained.archive)
        trained.wait_for_a_lock()
        session.get_one(ModelRow, trained.model().id, with_for_update=True)
    archive.result()
    assert [r.state for r in trained.runs()[-2:]] == [RunState.CANCELLED] * 2


def test_a_policy_stays_while_a_run_goes_on_beside_a_refill_that_waits(trained):
    refill_and_run(trained)
    change = partial(policies.change_policy, trained.services.database, "model")
    with trained.transaction() as session:
        assert runs.lease_new(session, trained.runs()[-1], lease_s=30.0)
    with pytest.raises(ConflictError, match="a run is active"):
        change({"minimum_members": 1})


def test_no_ensemble_keeps_more_members_than_it_has(workshop):
    for architecture, least in ((ENSEMBLE, 5), (MLP, 1)):
        with pytest.raises(InvalidInputError, match="minimum_members is for ensembles"):
            workshop.define(architecture=architecture, mechanism="auto", minimum_members=least)


def test_no_score_decides_which_members_of_an_ensemble_stay(trained):
    """It would depend on members that are left out later, and on their forgotten records."""
    with pytest.raises(InvalidInputError, match="minimum_score is not for ensembles"):
        trained.define("other", architecture=ENSEMBLE, mechanism="auto", minimum_score=0.1)
    with pytest.raises(InvalidInputError, match="minimum_score is not for ensembles"):
        policies.change_policy(trained.services.database, "model", {"minimum_score": 0.1})


def test_trainings_and_refills_measure_what_fewer_members_score(trained):
    first = head_of(trained).evaluation
    assert [each["members"] for each in first["fewer_members"]] == [3, 2]
    assert all(0 <= each["score"] <= 1 for each in first["fewer_members"])
    forget(trained, records_by_member(trained)[0][0])
    carry_out(trained)
    assert head_of(trained).evaluation == {"held_out_records": 0, "not_measured": True}
    refill(trained)
    carry_out(trained)
    assert [each["members"] for each in head_of(trained).evaluation["fewer_members"]] == [3, 2]


def test_a_version_of_a_model_that_nobody_measured_does_not_say_that_an_older_one_was(workshop):
    workshop.push(4 * RECORDS, first=RECORDS)
    unmeasured = RECIPE.to_json() | {"held_out_fraction": 0.0}
    workshop.define(architecture=ENSEMBLE, mechanism="auto", recipe=unmeasured)
    carry_out(workshop)
    for _ in range(2):
        active = next(place for place, state in enumerate(states(workshop)) if state == 1)
        forget(workshop, records_by_member(workshop)[active][0])
        carry_out(workshop)
        assert head_of(workshop).evaluation == {"held_out_records": 0}
        assert warnings_of(head_of(workshop).evaluation)


def test_an_attempt_that_fails_before_it_publishes_leaves_nothing(trained, monkeypatch):
    real, written = leaving_out.publish_checked, []

    def broken(*places, result, **more):
        written.append(result.weights.id)
        if len(written) == 1:
            raise RuntimeError
        real(*places, result=result, **more)

    monkeypatch.setattr(leaving_out, "publish_checked", broken)
    request = forget(trained, records_by_member(trained)[3][0])
    with pytest.raises(RuntimeError):
        carry_out(trained)
    run = trained.runs()[-1]
    trained.give_up(Held(run.id, run.fencing_token), permanent=False)
    carry_out(trained)
    assert states(trained) == [1, 1, 1, "out"]
    assert predicate_of(trained, request)["model"]["version"] == 2
    with trained.transaction() as session:
        lost, kept = (session.get_one(BlobRow, each).state for each in written)
    assert lost in (BlobState.DOOMED, BlobState.SHREDDED)
    assert kept == BlobState.LIVE
