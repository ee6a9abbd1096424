"""Requests that the present version covers: certified in the transaction that accepts them."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import event

from app.accounting.histories.history import Forget, History
from app.api.forget_requests import Forgetting
from app.domain.errors import ObjectStoreError, VerificationError
from app.evidence.certificates.signing import payload_from, payload_of, statement_of
from app.evidence.certificates.verification import check_statement, verify
from app.ledger import runs
from app.ledger.certificates import bundles, issuing
from app.ledger.models import policies, serving
from app.ledger.new_requests import Call, NewForgetRequest
from app.registry import repository as registry
from app.registry.tables import VersionRow
from tests.support.salts import salt_of
from tests.support.trust import trust_in
from tests.support.workshop import DATASET, Workshop

HEAD: dict[str, Any] = {
    "architecture": "linear_head",
    "recipe": {"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25},
    "mechanism": "tracked_release",
    "epsilon": 20.0,
    "parameters": {"noise_std": 5.0},
}
PRIVATE: dict[str, Any] = {
    "mechanism": "dp_sgd",
    "epsilon": 8.0,
    "parameters": {"capacity": 3},
}
MOST_STATEMENTS = 40
"""Of an answer at once, whatever the number of requests: each is a round trip under locks. Two wake
the dispatcher, and who waits for news."""
MODELS = {"tracked_release": HEAD, "dp_sgd": PRIVATE}


def made(workshop: Workshop, **policy: Any) -> list[str]:
    """Train a model; return the ids that it learned from."""
    workshop.train(**policy)
    return workshop.split()[0]


def head(workshop: Workshop) -> VersionRow:
    with workshop.transaction() as session:
        version = registry.head_version(session, workshop.model())
        assert version is not None
        return version


def history(workshop: Workshop) -> History:
    tracking = workshop.model().tracking
    assert tracking is not None
    return History.from_json(tracking["history"])


def states(workshop: Workshop, *requests: str) -> list[str]:
    return [owed.state for request in requests for owed in workshop.obligations(request)]


def verified(workshop: Workshop, request: str, *ids: str) -> dict[str, Any]:
    """Verify a request's only certificate offline, with its receipt; return what it says."""
    (owed,) = workshop.obligations(request)
    assert owed.certificate_id is not None
    services = workshop.services
    with workshop.transaction() as session:
        certificate = issuing.certificate(session, owed.certificate_id)
        bundle = bundles.bundle_of(session, certificate, signer=services.signer, request_id=request)
        version = session.get_one(VersionRow, certificate.version_id)
    receipt = {
        "receipt_salt": base64.b64encode(salt_of(services, request)).decode(),
        "records": len(ids),
        "record_ids": ids,
    }
    return verify(
        bundle=json.dumps(bundle).encode(),
        weights=services.blobs.read(version.blob_id),
        trusted=trust_in(services),
        receipt=json.dumps(receipt).encode(),
    )


def together(workshop: Workshop, *requests: Sequence[str]) -> list[str]:
    """Have requests accepted together; return their ids."""
    calls = [
        Call(NewForgetRequest(DATASET, record_ids=ids), workshop.key_id, f"actor-{i}")
        for i, ids in enumerate(requests)
    ]
    with workshop.transaction() as session:
        answers = workshop.services.acceptance.submit_all(session, calls)
        return [answer.request_id for answer in answers]  # type: ignore[union-attr]


@pytest.mark.parametrize("model", MODELS)
def test_a_request_that_the_version_covers_is_certified_as_it_is_accepted(
    workshop: Workshop, model: str
) -> None:
    learned = made(workshop, **MODELS[model])
    before = head(workshop)
    first = workshop.forget(learned[0])
    second = workshop.forget(learned[1])

    assert states(workshop, first, second) == ["certified"] * 2
    assert workshop.request(first).state == "certified"
    assert workshop.active_run() is None
    workshop.dispatch()
    assert workshop.active_run() is None
    after = head(workshop)
    assert (after.id, after.covers_epoch) == (before.id, before.covers_epoch + 2)
    for request, record, count in ((first, learned[0], 1), (second, learned[1], 2)):
        stated = verified(workshop, request, record)
        assert stated["forgotten"]["records"] == stated["forgotten"]["requests"] == count
        assert stated["mechanism"]["name"] == model
        assert stated["guarantee"]["epsilon"] <= MODELS[model]["epsilon"]


def test_the_lineage_remembers_in_one_event_what_it_covers(workshop: Workshop) -> None:
    learned = made(workshop, **HEAD)
    released = history(workshop).events
    for record in learned[:4]:
        workshop.forget(record)

    *before, forget = history(workshop).events
    assert tuple(before) == released
    assert isinstance(forget, Forget)
    assert history(workshop).forgotten() == 4


def test_beyond_its_capacity_a_run_takes_over_with_the_same_history(workshop: Workshop) -> None:
    learned = made(workshop, **HEAD | {"epsilon": 2.0, "parameters": {"noise_std": 20.0}})
    at_once, waiting = [], None
    for record in learned:
        request = workshop.forget(record)
        if states(workshop, request) != ["certified"]:
            waiting = record, request
            break
        at_once.append(record)
    assert at_once
    assert waiting is not None
    record, request = waiting
    workshop.unlearn()

    stated = verified(workshop, request, record)
    assert stated["model"]["version"] == 2
    assert stated["forgotten"]["records"] == len(at_once) + 1
    assert history(workshop).forgotten() == len(at_once) + 1


def test_requests_that_come_together_share_a_certificate(workshop: Workshop) -> None:
    learned = made(workshop, **HEAD | {"parameters": {"noise_std": 20.0}})
    held_out = workshop.split()[1]
    requests = together(
        workshop, *([record] for record in learned[:20]), [held_out[0]], [held_out[1]]
    )

    owed = [one for request in requests for one in workshop.obligations(request)]
    assert {one.state for one in owed} == {"certified"}
    assert len({one.certificate_id for one in owed[:20]}) == 1
    assert len({one.certificate_id for one in owed[20:]}) == 1
    for request, record in zip(requests, [*learned[:20], *held_out[:2]], strict=True):
        verified(workshop, request, record)


def test_sixteen_requests_take_no_more_statements_than_one(workshop: Workshop) -> None:
    learned = made(workshop, **HEAD | {"parameters": {"noise_std": 40.0}})
    forgetting = Forgetting(workshop.services)
    engine = workshop.services.database.engine
    counted = []
    for records in (learned[:1], learned[1:2], learned[2:18]):  # the first fills what is remembered
        sent: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any, sent: Any = sent) -> None:
            sent.append(statement)

        calls = [
            Call(NewForgetRequest(DATASET, [record], idempotency_key=record), workshop.key_id, "me")
            for record in records
        ]
        event.listen(engine, "before_cursor_execute", note)
        answers = forgetting.submit_all(calls)
        event.remove(engine, "before_cursor_execute", note)
        assert {getattr(answer, "state", answer) for answer in answers} == {"certified"}
        counted.append(len(sent))
    assert max(counted[1:]) <= MOST_STATEMENTS


def test_nothing_is_certified_at_once_beside_a_run(workshop: Workshop) -> None:
    learned = made(workshop, **HEAD)
    workshop.retrain()
    queued = workshop.forget(learned[0])
    held = workshop.begun()
    going = workshop.forget(learned[1])
    assert states(workshop, queued, going) == ["open"] * 2

    workshop.publish(held)
    assert states(workshop, queued) == ["certified"]  # excluded: the training began without it
    assert states(workshop, going) == ["open"]
    later = workshop.forget(learned[2])
    assert states(workshop, going, later) == ["certified"] * 2
    assert verified(workshop, going, learned[1])["forgotten"]["records"] == 2
    assert verified(workshop, later, learned[2])["model"]["version"] == 2


def test_what_waits_or_failed_is_certified_with_the_next_request(workshop: Workshop) -> None:
    learned = made(workshop, **HEAD)
    workshop.retrain()
    first, second = workshop.forget(learned[0]), workshop.forget(learned[1])
    with workshop.transaction() as session:
        cancelled = workshop.active_run()
        assert cancelled is not None
        runs.cancel_run(session, cancelled)
    workshop.cancel(second)
    assert states(workshop, first, second) == ["open", "open"]

    third = workshop.forget(learned[2])
    assert states(workshop, first, second, third) == ["certified"] * 3
    assert [workshop.request(each).state for each in (first, second)] == ["certified", "cancelled"]
    stated = verified(workshop, third, learned[2])
    assert stated["forgotten"]["records"] == history(workshop).forgotten() == 3
    workshop.dispatch()
    assert workshop.active_run() is None


def test_a_tighter_policy_counts_at_once(workshop: Workshop) -> None:
    learned = made(workshop, **HEAD)
    assert states(workshop, workshop.forget(learned[0])) == ["certified"]
    policies.change_policy(workshop.services.database, "model", {"epsilon": 0.5})
    request = workshop.forget(learned[1])
    assert states(workshop, request) == ["open"]
    workshop.unlearn()
    assert verified(workshop, request, learned[1])["target"]["epsilon"] == 0.5


@pytest.mark.parametrize("before", ["retraining", "projected_noisy_sgd"])
def test_the_mechanism_of_the_newest_release_covers_requests(
    workshop: Workshop, before: str
) -> None:
    """A lineage may change its mechanism, and a certificate names none but the release's own."""
    database = workshop.services.database
    retrains = before == "retraining"
    noise = {} if retrains else {"mechanism": before, "parameters": {"noise_std": 1.0}}
    learned = made(workshop, **HEAD | noise)
    if retrains:
        policies.change_policy(database, "model", {"mechanism": before, "parameters": {}})
        workshop.forget(learned[-1])
        workshop.unlearn()
    tracked = {"mechanism": "tracked_release", "parameters": {"noise_std": 50.0}, "epsilon": 1.0}
    policies.change_policy(database, "model", tracked)
    workshop.forget(*learned[:20])
    workshop.unlearn()
    policies.change_policy(
        database, "model", {"mechanism": "auto", "parameters": {}, "epsilon": 20.0}
    )

    request = workshop.forget(learned[20])
    assert states(workshop, request) == ["certified"]
    assert verified(workshop, request, learned[20])["mechanism"]["name"] == "tracked_release"


@pytest.mark.parametrize(
    "other",
    [{"first_release": "none"}, {"mechanism": "exact_training", "parameters": {}}],
)
def test_versions_that_were_not_released_and_exact_heads_need_a_run(
    workshop: Workshop, other: dict[str, Any]
) -> None:
    learned = made(workshop, **HEAD | other)
    assert states(workshop, workshop.forget(learned[0])) == ["open"]


def test_an_emptied_model_is_withdrawn_and_not_certified(workshop: Workshop) -> None:
    learned = made(workshop, **HEAD | {"epsilon": 200.0, "parameters": {"noise_std": 40.0}})
    first = workshop.forget(learned[0])  # the rest is remembered as left
    assert states(workshop, first) == ["certified"]
    request = workshop.forget(*learned)
    assert states(workshop, request) == ["open"]
    workshop.dispatch()
    assert states(workshop, request) == ["cancelled"]


def test_who_names_a_covered_record_again_gets_a_proof_of_the_newest_statement(
    workshop: Workshop,
) -> None:
    learned = made(workshop, **HEAD)
    workshop.forget(learned[0])
    workshop.forget(learned[1])
    again = workshop.forget(learned[0])

    stated = verified(workshop, again, learned[0])
    assert (stated["forgotten"]["requests"], stated["forgotten"]["records"]) == (3, 2)
    assert history(workshop).forgotten() == 2


@pytest.mark.parametrize("forged", ["fewer records in its history", "more records in the count"])
def test_a_forged_statement_about_more_records_than_its_history_has_is_refused(
    workshop: Workshop, forged: str
) -> None:
    """The forger has the key: what does not follow from the history is refused all the same."""
    learned = made(workshop, **HEAD)
    for record in learned[:3]:
        workshop.forget(record)
    version = head(workshop)
    with workshop.transaction() as session:
        envelope = issuing.certificate(session, version.certificate_id).envelope
    statement = statement_of(envelope)
    weights = workshop.services.blobs.read(version.blob_id)
    check_statement(payload_from(statement), weights=weights)
    predicate = statement["predicate"]
    if forged.startswith("fewer"):
        events = predicate["mechanism"]["parameters"]["history"]["events"]
        events[-1]["forget"] = events[-1]["forget"][:1]
        events[-1]["forget"][0][1] = 1
    else:
        for count in ("records", "requests"):
            predicate["forgotten"][count] += 1
        predicate["forgotten"]["covered"]["size"] += 1
    signed = workshop.services.signer.sign(statement)
    with pytest.raises(VerificationError, match="its history forgets other records"):
        check_statement(payload_of(signed.envelope), weights=weights)


def test_requests_that_adapt_are_answered_only_by_what_composes_releases(
    workshop: Workshop,
) -> None:
    adaptive = HEAD | {
        "mechanism": "noisy_gd_convex",
        "adaptive": True,
        "epsilon": 8.0,
        "parameters": {"earlier_releases": 4, "forgotten": 10},
    }
    learned = made(workshop, **adaptive)
    request = workshop.forget(learned[0])
    assert states(workshop, request) == ["certified"]
    guarantee = verified(workshop, request, learned[0])["guarantee"]
    assert (guarantee["adaptive"], guarantee["releases_before"]) == (True, 1)


def test_a_store_that_is_away_makes_the_request_wait_for_a_run(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> bytes:
        raise ObjectStoreError("the object store does not answer")

    learned = made(workshop, **HEAD)
    with monkeypatch.context() as patched:
        patched.setattr(workshop.services.blobs, "read", away)
        request = workshop.forget(learned[0])
    assert states(workshop, request) == ["open"]
    later = workshop.forget(learned[1])
    assert states(workshop, request, later) == ["certified"] * 2


def test_a_version_served_until_requests_come_is_served_on(workshop: Workshop) -> None:
    learned = made(workshop, **HEAD, serving="withdraw_on_request")
    workshop.forget(learned[0])
    with workshop.transaction() as session:
        assert serving.find_current_version(session, workshop.model()) is not None
