"""A new training of a model: its records, its history, and the answer to what is owed."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.client.download import bundle_bytes
from app.domain.errors import (
    ConflictError,
    GoneError,
    InvalidInputError,
    NotFoundError,
    PlanError,
)
from app.domain.states import Serving
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.verification import verify
from app.ledger import runs
from app.ledger.certificates import bundles, issuing
from app.ledger.models import policies, retraining, serving
from app.planning.tracking import Tracking
from app.registry import repository as registry
from tests.support.logbook import sign
from tests.support.mechanisms import CASES
from tests.support.representatives import mostly_nightly
from tests.support.salts import salt_of
from tests.support.trust import trust_in
from tests.support.workshop import RECORDS, Workshop, record_ids

NAMED = ("gradient_clipping", "retraining", "dp_sgd", "tracked_release", "projected_noisy_sgd")
KINDS: dict[str, dict[str, Any]] = {
    **{name: {"mechanism": name, **(CASES[name].small or {})} for name in NAMED},
    "as_trained": {"first_release": "as_trained"},
    "none": {"first_release": "none"},
}


def _predicate(workshop: Workshop, certificate_id: str | None) -> dict[str, Any]:
    with workshop.transaction() as session:
        envelope = issuing.certificate(session, str(certificate_id)).envelope
    predicate: dict[str, Any] = statement_of(envelope)["predicate"]
    return predicate


def _verify(
    workshop: Workshop, request: str, weights: bytes, *ids: str, kept: bytes | None = None
) -> dict[str, Any]:
    """Check a request's only certificate as its requester does, far from the service."""
    (owed,) = workshop.obligations(request)
    services = workshop.services
    size = None if kept is None else int(kept.split(b"\n")[1])
    with workshop.transaction() as session:
        certificate = issuing.certificate(session, str(owed.certificate_id))
        bundle = bundles.bundle_of(
            session, certificate, signer=services.signer, request_id=request, since=size
        )
    receipt = {
        "request": request,
        "receipt_salt": base64.b64encode(salt_of(services, request)).decode(),
        "records": len(ids),
        "record_ids": list(ids),
        "subject_ids": [],
    }
    return verify(
        bundle=bundle_bytes(bundle),
        weights=weights,
        trusted=trust_in(services),
        consistent_with=kept,
        receipt=json.dumps(receipt).encode(),
    )


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, "tracked_release", "dp_sgd", "none"))
def test_a_new_training_answers_what_was_asked_before_and_begins_a_new_history(
    workshop: Workshop, kind: str
) -> None:
    workshop.train(**KINDS[kind])
    learned, held_out = workshop.split()
    unlearned = workshop.forget(learned[0], *learned[4:6])
    workshop.dispatch()
    if kind != "dp_sgd":  # whose noise covers three records, and no more
        workshop.work()
    workshop.push(first=RECORDS)
    kept = sign(workshop.services)
    before, mixed = workshop.forget(learned[1]), workshop.forget(learned[2], held_out[0])

    workshop.retrain()
    held = workshop.begun()
    late = workshop.forget(learned[3])
    new = workshop.forget(*workshop.split(first=RECORDS)[0][:2])  # only the new training reads them
    result = workshop.result(held)
    version = workshop.publish(held, result)
    weights = workshop.services.blobs.read(version.blob_id)

    for request, ids in ((before, learned[1:2]), (mixed, [learned[2], held_out[0]])):
        (owed,) = workshop.obligations(request)
        assert (owed.state, owed.basis) == ("certified", "excluded_from_training")
        assert owed.run_id == held.run_id
        predicate = _verify(workshop, request, weights, *ids, kept=kept)
        assert predicate["model"]["version"] == version.number
        assert "began anew" in predicate["assumptions"][0]["statement"]
    assert [workshop.obligations(request)[0].state for request in (late, new)] == ["open", "open"]
    model = workshop.model()
    assert model.trained_through == max(workshop.seqs(*record_ids(2 * RECORDS)))
    if kind != "as_trained":
        forgotten = _predicate(workshop, version.certificate_id)["forgotten"]
        assert (forgotten["requests"], forgotten["records"]) == (0, 0)
        assert forgotten["excluded_records"] == 6
    if kind in ("tracked_release", "projected_noisy_sgd"):
        history = Tracking.from_json(model.tracking or {}).history
        assert history is not None
        assert (history.releases, history.forgotten()) == (1, 0)

    last = workshop.unlearn()
    assert last.number == version.number + 1
    predicate = _predicate(workshop, last.certificate_id)
    assert predicate["forgotten"]["records"] == 3
    _verify(workshop, late, workshop.services.blobs.read(last.blob_id), learned[3], kept=kept)
    _verify(workshop, before, weights, learned[1], kept=kept)  # also now

    workshop.retrain()
    again = workshop.work()
    workshop.archive()
    assert again.number == last.number + 1
    with workshop.transaction() as session, pytest.raises(GoneError, match="was archived on"):
        serving.current_version(session, registry.model_named(session, "model"))
    workshop.services.clean_up()
    assert {workshop.request(r).state for r in (unlearned, before, mixed, late, new)} == {
        "completed"
    }


def test_a_request_keeps_its_proof_when_the_model_is_retrained_and_archived(
    workshop: Workshop,
) -> None:
    workshop.train()
    learned, _ = workshop.split()
    request = workshop.forget(learned[0])
    workshop.dispatch()
    weights = workshop.services.blobs.read(workshop.work().blob_id)
    _verify(workshop, request, weights, learned[0])
    workshop.retrain()
    workshop.work()
    _verify(workshop, request, weights, learned[0])
    workshop.archive()
    _verify(workshop, request, weights, learned[0])


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
def test_a_training_without_result_leaves_the_version_and_what_it_owes(
    workshop: Workshop, end: str
) -> None:
    first = workshop.train()
    workshop.push(first=RECORDS)
    learned, _ = workshop.split()
    membership = workshop.membership()
    before = workshop.forget(learned[0])
    workshop.retrain()
    held = workshop.begun()
    late = workshop.forget(learned[1])
    new = workshop.forget(*workshop.split(first=RECORDS)[0])
    assert [o.state for o in workshop.obligations(new)] == ["open"]
    if end == "fails":
        workshop.give_up(held)
    else:
        with workshop.transaction() as session:
            runs.cancel_run(session, held.run_id)

    assert workshop.membership() == membership
    (ended,) = workshop.obligations(new)
    assert ended.state == "cancelled"
    assert "no weights that learned from its records exist" in str(ended.failure_reason)
    assert workshop.model().head_version_id == first.id
    version = workshop.unlearn()
    assert [workshop.obligations(r)[0].certificate_id for r in (before, late)] == [
        version.certificate_id
    ] * 2
    with pytest.raises(ConflictError, match="later run"):
        runs.retry_run(workshop.services.database, held.run_id)


def test_what_had_failed_is_answered_by_a_new_training(workshop: Workshop) -> None:
    workshop.train()
    request = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held)
    assert workshop.request(request).state == "failed"
    workshop.retrain()
    workshop.work()
    assert workshop.request(request).state == "certified"
    assert workshop.obligations(request)[0].failure_reason is None


def test_a_record_that_an_earlier_training_read_is_not_called_held_out(workshop: Workshop) -> None:
    workshop.train()
    learned, held_out = workshop.split()
    workshop.forget(learned[0])
    workshop.unlearn()
    workshop.retrain()
    weights = workshop.services.blobs.read(workshop.work().blob_id)
    workshop.push(first=RECORDS)
    later = workshop.split(first=RECORDS)[0][0]

    for request, ids in (
        (workshop.forget(learned[0], held_out[0]), [learned[0], held_out[0]]),
        (workshop.forget(later, held_out[1]), [later, held_out[1]]),
    ):
        about, _ = _verify(workshop, request, weights, *ids)["assumptions"]
        assert "began anew" in about["statement"]
    (about,) = _verify(workshop, workshop.forget(held_out[2]), weights, held_out[2])["assumptions"]
    assert about["statement"] == "the records were held out: no gradient ever read them"


def test_a_private_version_is_followed_by_private_ones_until_something_is_asked(
    workshop: Workshop,
) -> None:
    workshop.define(first_release="none")
    for number in (1, 2, 3):
        version = workshop.work()
        assert (version.number, version.state) == (number, "private")
        with workshop.transaction() as session:
            model = registry.model_named(session, "model")
            assert registry.released_versions(session, model.id) == []
            with pytest.raises(NotFoundError):
                registry.version_numbered(session, model, 1)
            with pytest.raises(NotFoundError):
                issuing.released_certificate(session, version.certificate_id)
            assert not issuing.has_shown_certificate(session, model.id)
        workshop.retrain()
    held = workshop.begun()
    workshop.publish(held)
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    assert workshop.work().state == "certified"
    workshop.retrain()
    assert workshop.work().state == "certified"
    with workshop.transaction() as session:
        model = registry.model_named(session, "model")
        shown = registry.released_versions(session, model.id)
        assert [version.number for version in shown] == [6, 5, 4, 3, 2, 1]


def test_a_private_version_that_was_withdrawn_was_not_released(workshop: Workshop) -> None:
    workshop.train(first_release="none")
    workshop.forget(*record_ids())
    workshop.dispatch()
    workshop.push(first=RECORDS)
    workshop.retrain()
    assert workshop.work().state == "private"


def test_a_request_repeated_during_a_training_is_answered_by_it_too(workshop: Workshop) -> None:
    workshop.train()
    record = workshop.split()[0][0]
    first = workshop.forget(record)
    workshop.retrain()
    held = workshop.begun()
    second = workshop.forget(record)
    workshop.publish(held)
    for request in (first, second):
        (owed,) = workshop.obligations(request)
        assert (owed.state, owed.basis) == ("certified", "excluded_from_training")
    assert workshop.active_run() is None


def test_the_version_before_is_served_until_the_new_one_is(workshop: Workshop) -> None:
    workshop.train(first_release="none", serving=Serving.WITHDRAW_ON_REQUEST)
    request = workshop.forget(workshop.split()[0][0])
    second = workshop.unlearn()
    workshop.retrain()
    held = workshop.begun()

    def served() -> int:
        with workshop.transaction() as session:
            return serving.current_version(session, registry.model_named(session, "model")).number

    assert served() == second.number
    assert workshop.publish(held).state == "certified"  # what it replaces was released
    assert served() == 3
    assert workshop.request(request).state == "certified"


def test_a_new_training_is_refused_where_it_cannot_be(workshop: Workshop) -> None:
    workshop.define("brought", upload=True)
    with pytest.raises(ConflictError, match="are brought"):
        workshop.retrain("brought")
    workshop.define("busy")
    with pytest.raises(ConflictError, match="queued: wait for its end, or cancel it"):
        workshop.retrain("busy")
    workshop.work("busy")
    adaptive = CASES["noisy_gd_convex"].small or {}
    workshop.train("adaptive", mechanism="noisy_gd_convex", **adaptive)
    with pytest.raises(PlanError, match="requests must not depend on them"):
        workshop.retrain("adaptive")
    workshop.forget(*record_ids())
    with pytest.raises(ConflictError, match="has no records"):
        workshop.retrain("busy")
    workshop.archive("busy")
    with pytest.raises(GoneError, match="was archived"):
        workshop.retrain("busy")


def test_policies_ask_for_trainings_by_time_and_by_records(workshop: Workshop) -> None:
    now = datetime.now(UTC)
    automatic = retraining.AutomaticRetraining(workshop.services.database, lambda _: now)
    day = timedelta(days=1)
    workshop.define("never")
    workshop.define("daily", retrain_every_s=3600.0)
    workshop.define("growing", retrain_after_records=8)
    for name in ("never", "daily", "growing"):
        workshop.work(name)
    assert automatic.retrain_due() == []
    workshop.push(7, first=RECORDS)
    now += timedelta(minutes=50)
    assert automatic.retrain_due() == []
    workshop.push(1, first=RECORDS + 7)
    assert automatic.retrain_due() == ["growing"]
    assert automatic.retrain_due() == []  # it is going
    now += timedelta(minutes=20)
    assert automatic.retrain_due() == ["daily"]
    workshop.work("growing")
    workshop.give_up(workshop.lease("daily"))
    assert automatic.retrain_due() == []  # nothing is new, and what failed waits
    now += day
    assert automatic.retrain_due() == ["daily"]
    workshop.archive("daily")
    now += day
    assert automatic.retrain_due() == []


@pytest.mark.parametrize("error", [PlanError("no plan"), ValueError("unexpected")])
def test_a_policy_that_cannot_be_met_any_more_is_tried_once_an_hour(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    now = datetime.now(UTC)
    automatic = retraining.AutomaticRetraining(workshop.services.database, lambda _: now)
    workshop.train(retrain_after_records=1)
    workshop.push(1, first=RECORDS)
    tried = []

    def refuse(*_: object, **__: object) -> None:
        tried.append(now)
        raise error

    monkeypatch.setattr(retraining, "retrain", refuse)
    assert automatic.retrain_due() == []
    assert automatic.retrain_due() == []
    now += timedelta(hours=1)
    assert automatic.retrain_due() == []
    assert len(tried) == 2


def test_weights_that_are_brought_are_not_retrained_by_policy(workshop: Workshop) -> None:
    with pytest.raises(InvalidInputError, match="trained here"):
        workshop.define(upload=True, retrain_every_s=60.0)
    workshop.define(upload=True)
    with pytest.raises(InvalidInputError, match="trained here"):
        policies.change_policy(workshop.services.database, "model", {"retrain_after_records": 5})
