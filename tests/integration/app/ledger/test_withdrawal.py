"""A model of which every record was forgotten is withdrawn, and can be trained again."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select

from app.domain.errors import ConflictError, GoneError, LeaseLostError, NotReadyError
from app.domain.states import ObligationState, RunKind
from app.evidence.certificates.signing import payload_from, statement_of
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.verification import check_statement
from app.ledger import publication, repository, runs
from app.ledger.certificates import issuing
from app.ledger.models import serving
from app.ledger.new_requests import NewForgetRequest
from app.ledger.withdrawal import EMPTIED, withdraw
from app.registry import repository as registry
from app.storage.tables import BlobRow
from tests.support.mechanisms import CASES
from tests.support.patience import PATIENCE_S
from tests.support.representatives import mostly_nightly
from tests.support.weights import weights_of_version
from tests.support.workshop import DATASET, RECORDS, Workshop, record_ids

SMALL = {name: case.small for name, case in CASES.items() if case.small is not None}


def _serve(workshop: Workshop) -> object:
    with workshop.transaction() as session:
        return serving.current_version(session, registry.model_named(session, "model"))


def _certificates(workshop: Workshop) -> int:
    with workshop.transaction() as session:
        return session.scalar(select(func.count()).select_from(CertificateRow)) or 0


def _require_withdrawn(workshop: Workshop, *requests: str) -> None:
    """Check that nothing is served or owed, and that all of it is completed."""
    assert workshop.active_run() is None
    model = workshop.model()
    assert (model.head_version_id, model.imported_blob_id, model.tracking) == (None, None, None)
    assert (model.trained_through, model.trained_after_epoch) == (None, None)
    with workshop.transaction() as session:
        assert not repository.obligations_of_model(
            session,
            model.id,
            (ObligationState.OPEN, ObligationState.RUNNING, ObligationState.FAILED),
        )
    workshop.services.clean_up()
    assert {workshop.request(request).state for request in requests} <= {"completed"}
    with workshop.transaction() as session:
        weights = session.scalars(select(BlobRow.state).where(BlobRow.kind != "shard")).all()
    assert set(weights) <= {"shredded"}


@pytest.mark.parametrize("mechanism", mostly_nightly(SMALL, "gradient_clipping", "tracked_release"))
@pytest.mark.parametrize("batches", [1, 2])
def test_when_every_record_was_forgotten_the_model_is_withdrawn(
    workshop: Workshop, mechanism: str, batches: int
) -> None:
    workshop.train(mechanism=mechanism, **SMALL[mechanism])
    before = []
    ids = record_ids()
    if batches == 2:
        before, ids = [workshop.forget(ids[0], workshop.split()[0][0])], ids[1:]
        workshop.dispatch()
        if workshop.active_run() is not None:  # else the version covered them
            workshop.work()
    certificates = _certificates(workshop)
    request = workshop.forget(*ids)
    workshop.dispatch()

    (owed,) = workshop.obligations(request)
    assert (owed.state, owed.certificate_id, owed.failure_reason) == ("cancelled", None, EMPTIED)
    assert workshop.request(request).failure_reason is None
    with pytest.raises(GoneError, match="every record that it could be trained on was forgotten"):
        _serve(workshop)
    _require_withdrawn(workshop, request, *before)
    assert _certificates(workshop) == certificates
    with pytest.raises(GoneError, match=r"shredded: every record"):
        _serve(workshop)


def test_records_that_are_held_out_do_not_keep_a_model(workshop: Workshop) -> None:
    workshop.train()
    learned, held_out = workshop.split()
    request = workshop.forget(*learned)
    workshop.dispatch()
    later = workshop.forget(held_out[0])
    _require_withdrawn(workshop, request, later)
    assert workshop.obligations(later) == []


def test_one_record_that_is_left_keeps_a_model(workshop: Workshop) -> None:
    workshop.train()
    learned, held_out = workshop.split()
    workshop.forget(*learned[1:], *held_out)
    workshop.dispatch()
    assert workshop.work().number == 2


def test_what_failed_before_ends_with_the_withdrawal_when_it_is_retried(
    workshop: Workshop,
) -> None:
    workshop.train()
    request = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    workshop.give_up(workshop.lease())
    workshop.forget(*record_ids())
    workshop.dispatch()
    _require_withdrawn(workshop, request)


def test_a_run_from_under_which_the_last_record_vanishes_withdraws_its_model(
    workshop: Workshop,
) -> None:
    workshop.train()
    first = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.lease()
    rest = workshop.forget(*record_ids())

    with pytest.raises(LeaseLostError, match="every record"):
        workshop.begin(held)

    run = workshop.run(held.run_id)
    assert (run.state, run.failure_reason) == ("cancelled", EMPTIED)
    with pytest.raises(LeaseLostError):
        workshop.publish(held)
    _require_withdrawn(workshop, first, rest)


@pytest.mark.parametrize("found_by", ["worker", "dispatcher"])
def test_imported_weights_that_were_never_certified_are_withdrawn(
    workshop: Workshop, found_by: str
) -> None:
    workshop.define(upload=True)
    blob_id = workshop.upload("model")
    held = workshop.lease()
    if found_by == "dispatcher":
        workshop.give_up(held)
    request = workshop.forget(*record_ids())
    if found_by == "dispatcher":
        workshop.dispatch()
    else:
        with pytest.raises(LeaseLostError, match="every record"):
            workshop.begin(held)

    _require_withdrawn(workshop, request)
    with workshop.transaction() as session:
        assert session.get_one(BlobRow, blob_id).state == "shredded"
    with pytest.raises(NotReadyError):
        _serve(workshop)
    with pytest.raises(ConflictError, match="upload them again"):
        runs.retry_run(workshop.services.database, held.run_id)


def test_weights_brought_again_are_unlearned_from_what_was_forgotten_before(
    workshop: Workshop,
) -> None:
    workshop.define(upload=True)
    workshop.upload("model")
    workshop.work()
    request = workshop.forget(*record_ids())
    workshop.dispatch()
    _require_withdrawn(workshop, request)
    workshop.push(first=RECORDS)
    workshop.upload("model")
    held = workshop.begun()
    result = workshop.result(held)
    with workshop.transaction() as session:
        statement = publication.draft(session, run_id=held.run_id, result=result)
    check_statement(payload_from(statement), weights=weights_of_version(2))
    predicate = statement["predicate"]
    assert (predicate["basis"], predicate["forgotten"]["records"]) == ("unlearned", RECORDS)
    assert workshop.publish(held, result).state == "certified"


RETRAINED: Mapping[str, dict[str, Any]] = {
    "gradient_clipping": {},
    "as_trained": {"first_release": "as_trained"},
    "none": {"first_release": "none"},
    "dp_sgd": {"mechanism": "dp_sgd", **SMALL["dp_sgd"]},
    "tracked_release": {"mechanism": "tracked_release", **SMALL["tracked_release"]},
}


@pytest.mark.parametrize("kind", mostly_nightly(RETRAINED, "as_trained", "tracked_release"))
def test_a_withdrawn_model_is_trained_again_on_what_was_pushed_since(
    workshop: Workshop, kind: str
) -> None:
    workshop.train(**RETRAINED[kind])
    workshop.forget(*record_ids())
    workshop.dispatch()
    workshop.push(first=RECORDS)
    created = runs.retry_run(workshop.services.database, workshop.runs()[-1].id)
    assert created.kind == RunKind.TRAIN
    with pytest.raises(NotReadyError):
        _serve(workshop)
    workshop.work()
    learned, _ = workshop.split(first=RECORDS)
    request = workshop.forget(*learned[:2])
    workshop.dispatch()
    if workshop.active_run() is not None:  # else the new version's noise covers them
        workshop.work()
    assert workshop.request(request).state == "certified"
    (owed,) = workshop.obligations(request)
    with workshop.transaction() as session:
        statement = statement_of(issuing.certificate(session, owed.certificate_id).envelope)
    forgotten = statement["predicate"]["forgotten"]
    assert (forgotten["records"], forgotten["excluded_records"]) == (2, RECORDS)
    assert statement["predicate"]["model"]["version"] == (2 if owed.run_id is None else 3)


def _while_locked(
    workshop: Workshop, first: Callable[[Any], object], then: Callable[[], object]
) -> None:
    """Do ``then``, which has to wait for what ``first`` has locked until that is committed."""
    with ThreadPoolExecutor(1) as thread:
        with workshop.transaction() as session:
            first(session)
            session.flush()
            future = thread.submit(then)
            workshop.wait_for_a_lock()
        future.result(PATIENCE_S)


def test_a_request_that_arrives_during_a_withdrawal_is_owed_nothing(workshop: Workshop) -> None:
    workshop.train()
    request = workshop.forget(*workshop.split()[0])
    later = []

    def withdrawing(session: Any) -> None:
        model = registry.model_named(session, "model", lock=True)
        withdraw(session, model, reason=EMPTIED)

    _while_locked(workshop, withdrawing, lambda: later.append(workshop.forget("record-1")))

    assert workshop.obligations(later[0]) == []
    workshop.dispatch()
    _require_withdrawn(workshop, request, *later)


def test_a_withdrawal_meets_a_request_that_arrived_just_before(workshop: Workshop) -> None:
    workshop.train()
    learned, _ = workshop.split()
    request = workshop.forget(*learned)
    later = []

    def asking(session: Any) -> None:
        forget = workshop.services.acceptance.submit
        asked = NewForgetRequest(DATASET, record_ids=[learned[0]])
        later.append(forget(session, asked, api_key_id=workshop.key_id)[0].id)

    _while_locked(workshop, asking, workshop.dispatch)

    (owed,) = workshop.obligations(later[0])
    assert (owed.state, owed.failure_reason) == ("cancelled", EMPTIED)
    _require_withdrawn(workshop, request, *later)
