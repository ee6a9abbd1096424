"""Certificates that contradict themselves: each was accepted once, signed and logged properly.

Where a lie is about parameters, all claims are made anew from them, so that nothing else is wrong.
"""

import hashlib
import json
import math
from collections.abc import Callable
from copy import deepcopy
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.accounting.histories.history import History
from app.domain.errors import VerificationError
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.verification import verify
from app.evidence.certificates.weights_file import WeightsFile
from tests.support import mechanisms, statements
from tests.support.bundles import signed_payload
from tests.support.statements import Case, synthetic
from tests.support.trust import trust

SIGNER = StatementSigner(Ed25519PrivateKey.from_private_bytes(b"k" * 32))
KEYS = trust(SIGNER)
TRAINED_ANEW = (
    "retraining",
    "sharded_retraining",
    "sharded_retraining_base",
    "left_out",
    "exact_training",
    "sufficient_statistics",
    "sufficient_statistics_of_numbers",
    "boosting",
)
Change = Callable[[dict[str, Any]], object]


def refused(statement: dict[str, Any], weights: bytes) -> str:
    """Return why the statement is refused."""
    bundle = json.dumps(signed_payload(json.dumps(statement).encode(), SIGNER)).encode()
    with pytest.raises(VerificationError) as caught:
        verify(bundle=bundle, weights=weights, trusted=KEYS)
    assert caught.value.step in ("statement", "weights", "guarantee", "log")
    return str(caught.value)


def lie(name: str, change: Change) -> str:
    """Return why a statement is refused after its predicate was changed."""
    case = synthetic()[name]
    statement = deepcopy(case.statement)
    change(statement["predicate"])
    return refused(statement, case.weights)


def consistent_lie(name: str, change: Change) -> str:
    """Return why a statement is refused after its parameters were changed and its claims fitted."""
    case = synthetic()[name]
    mechanism = case.statement["predicate"]["mechanism"]
    parameters = deepcopy(mechanism["parameters"])
    change(parameters)
    statement = statements.restating_claims(
        case.statement, mechanism=mechanism["name"], parameters=parameters
    )
    return refused(statement, case.weights)


def put(path: str, value: object) -> Change:
    def change(document: dict[str, Any]) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for parent in parents:
            document = document[parent]
        document[last] = value

    return change


@pytest.mark.parametrize(
    ("name", "trained"),
    [("gradient_clipping_base", "members.0.mask"), ("sharded_retraining_base", "members.0.0.mask")],
)
def test_a_tensor_of_the_base_that_was_trained(name: str, trained: str) -> None:
    def change(predicate: dict[str, Any]) -> None:
        named = trained if name == "gradient_clipping_base" else "0.mask"
        base, mechanism = predicate["base"], predicate["mechanism"]
        base["tensors"] = sorted({*base["tensors"], named})
        mechanism["tensors"] = sorted([*mechanism["tensors"], trained])

    assert "a tensor of its base was trained" in lie(name, change)


def test_an_ensemble_that_forgot_records_without_a_training() -> None:
    reason = lie("sharded_retraining", put("members.1.trained_in", 1))
    assert "no member was left out or trained anew" in reason


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.__setitem__("members.1.kept", np.ones(9, np.float32)),
        lambda tensors: tensors.__setitem__(
            "members.1.1.bias", tensors["members.1.1.bias"].astype(np.float64)
        ),
    ],
)
def test_a_member_with_another_tensor_than_the_others(change: Callable[..., object]) -> None:
    """Also one that no run is said to have trained: it could hold anything."""
    case = synthetic()["sharded_retraining"]
    tensors = safetensors.numpy.load(case.weights)
    change(tensors)
    weights = safetensors.numpy.save(tensors)
    statement = deepcopy(case.statement)
    statement["subject"][0]["digest"]["sha256"] = hashlib.sha256(weights).hexdigest()
    digests = WeightsFile(BytesIO(weights)).digests_of_members()
    for place, digest in digests.items():
        statement["predicate"]["members"][place]["sha256"] = digest
    assert "its members are not of one kind" in refused(statement, weights)


class TestHistories:
    def test_replacement_over_a_history_with_records_zeroed_out(self) -> None:
        change = put("history.recipe.neighbours", "replacement")
        case = synthetic()["tracked_release"]
        statement = deepcopy(case.statement)
        change(statement["predicate"]["mechanism"]["parameters"])
        assert "neighbours" in refused(statement, case.weights)
        statement["predicate"]["guarantee"]["neighbouring_relation"] = "replacement"
        assert "neighbours" in refused(statement, case.weights)

    @pytest.mark.parametrize("name", ["tracked_release", "projected_noisy_sgd"])
    def test_a_history_without_a_forget_event_though_records_are_forgotten(self, name: str) -> None:
        reason = consistent_lie(name, lambda p: p["history"]["events"].pop(2))
        assert "its history forgets other records" in reason

    def test_a_history_that_forgets_fewer(self) -> None:
        change = put("history.events.2.forget", [[1, 1]])
        assert "its history forgets other records" in consistent_lie("tracked_release", change)

    @pytest.mark.parametrize(
        ("constant", "value"), [("lipschitz", 1e-6), ("smoothness", 1e-3), ("smoothness", 0.25)]
    )
    def test_constants_that_are_not_those_of_the_classes_in_the_file(
        self, constant: str, value: float
    ) -> None:
        change = put(f"history.recipe.{constant}", value)
        assert "smoothness or lipschitz" in consistent_lie("tracked_release", change)

    def test_delete_to_descent_at_another_learning_rate_than_the_implied_one(self) -> None:
        change = put("history.recipe.learning_rate", 1.0)
        assert "learning_rate" in consistent_lie("delete_to_descent", change)

    def test_delete_to_descent_in_batches(self) -> None:
        def change(parameters: dict[str, Any]) -> None:
            parameters["history"]["recipe"] |= {"batches": 2, "batch_size": 128}

        assert "not full-batch" in consistent_lie("delete_to_descent", change)

    def test_earlier_releases_that_are_zero_in_a_second_version(self) -> None:
        def change(parameters: dict[str, Any]) -> None:
            parameters["earlier_releases"] = 0
            del parameters["history"]["events"][1]

        assert "earlier_releases" in consistent_lie("noisy_gd_convex", change)

    def test_more_releases_than_versions(self) -> None:
        def change(parameters: dict[str, Any]) -> None:
            parameters["history"]["events"].insert(1, {"release": 0.01})

        assert "more releases than versions" in consistent_lie("tracked_release", change)

    def test_fewer_releases_than_versions(self) -> None:
        """A request that an earlier release did not hide is moved into one run."""

        def change(parameters: dict[str, Any]) -> None:
            del parameters["history"]["events"][1]

        assert "fewer releases than versions" in consistent_lie("tracked_release", change)

    def test_a_history_that_goes_on_after_the_release(self) -> None:
        def change(parameters: dict[str, Any]) -> None:
            parameters["history"]["events"].append({"steps": 100, "noise_std": 0.0})

        assert "no final release" in consistent_lie("tracked_release", change)

    def test_a_covered_request_that_is_left_out_or_told_twice(self) -> None:
        name = "tracked_release_covering"
        dropped = consistent_lie(name, lambda p: p["history"]["events"].pop())
        assert "its history forgets other records" in dropped

        def split(parameters: dict[str, Any]) -> None:
            events = parameters["history"]["events"]
            *others, (batch, count) = events.pop()["forget"]
            events += [{"forget": [*others, [batch, count - 1]]}, {"forget": [[batch, 1]]}]

        assert "no final release" in consistent_lie(name, split)

    @pytest.mark.parametrize(
        "events",
        [[2, 0, 1, 3, 4], [0, 2, 1, 3, 4], [1, 2, 0, 3, 4]],
        ids=["before the training", "within the training", "after a release of nothing"],
    )
    def test_a_request_that_no_run_could_have_answered_so(self, events: list[int]) -> None:
        """Where records left early, nothing has to hide what was made of them."""

        def change(parameters: dict[str, Any]) -> None:
            told = parameters["history"]["events"]
            parameters["history"]["events"] = [told[place] for place in events]

        assert "a request before the training" in consistent_lie("projected_noisy_sgd", change)

    def test_a_request_of_nothing(self) -> None:
        def change(parameters: dict[str, Any]) -> None:
            parameters["history"]["events"].append({"forget": []})

        assert "a request before the training" in consistent_lie("tracked_release", change)


@pytest.mark.parametrize("name", ["projected_noisy_sgd", "tracked_release"])
def test_a_ball_that_the_weights_have_left(name: str) -> None:
    """Its radius bounds how far apart the worlds can be."""
    reason = consistent_lie(name, put("history.recipe.radius", 1e-3))
    assert "outside of the ball" in reason


@pytest.mark.parametrize("name", ["projected_noisy_sgd", "tracked_release"])
def test_a_ball_too_large_to_have_moved_weights_from_their_grid(name: str) -> None:
    case = _in_a_ball(_with_weights(name, dtype="float64"), 1e6)
    assert "grid" in refused(case.statement, case.weights)


def test_only_a_step_projects_weights_from_their_grid() -> None:
    beside = _with_weights("projected_noisy_sgd", dtype="float64")
    norm = float(np.linalg.norm(safetensors.numpy.load(beside.weights)["weight"]))
    radius = norm / (1 - 2.0**-22)  # the margin of a projection
    after_release = _in_a_ball(_with_weights("tracked_release", dtype="float64"), radius)
    assert "grid" in refused(after_release.statement, after_release.weights)
    rounded = [_in_a_ball(synthetic()[n], 1e6) for n in ("projected_noisy_sgd", "tracked_release")]
    for case in (_in_a_ball(beside, radius), *rounded):
        bundle = json.dumps(signed_payload(case.payload, SIGNER)).encode()
        assert verify(bundle=bundle, weights=case.weights, trusted=KEYS)


class TestForgotten:
    def test_a_group_of_one_where_eight_records_are_forgotten(self) -> None:
        change = put("group_size", 1)
        assert "its group is not all" in consistent_lie("dp_sgd", change)

    @pytest.mark.parametrize("name", ["dp_sgd", "noisy_gd_nonconvex"])
    def test_more_records_left_than_were_in_the_training(self, name: str) -> None:
        most = mechanisms.FORGOTTEN
        assert "more records left" in consistent_lie(name, put("records", most - 1))
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            consistent_lie(name, put("records", most))

    def test_a_request_larger_than_its_size_after_versions_of_another_training(self) -> None:
        def change(predicate: dict[str, Any]) -> None:
            forgotten, most = predicate["forgotten"], predicate["mechanism"]["parameters"]
            predicate["model"]["version"], forgotten["since_version"] = 6, 5
            forgotten["records"] = forgotten["covered"]["size"] = 5 * most["request_size"]

        assert "its requests are larger" in lie("noisy_gd_nonconvex", change)

    def test_steps_of_earlier_requests_that_are_left_out(self) -> None:
        assert "earlier" in consistent_lie("noisy_gd_nonconvex", put("earlier_steps", 10**7 - 1))

    @pytest.mark.parametrize("name", sorted(set(synthetic()) - {"as_trained", "as_trained_again"}))
    def test_records_that_are_said_to_be_gone_before_the_training(self, name: str) -> None:
        predicate = synthetic()[name].statement["predicate"]
        other = 0 if name in TRAINED_ANEW else predicate["forgotten"]["records"]
        if name == "dp_sgd":  # whose second version may be a new training
            other += 1
        assert lie(name, put("forgotten.before_training", other))


class TestClaims:
    def test_an_exclusion_of_commitments_that_its_tree_has_not(self) -> None:
        assert "its tree has not" in lie("exclusion", put("forgotten.first", 6))

    def test_certified_before_it_was_started(self) -> None:
        later = put("times.started_at", "2026-01-02T00:00:00+00:00")
        assert "certified before it was started" in lie("gradient_clipping", later)

    @pytest.mark.parametrize("field", ["name", "version", "source"])
    def test_an_accountant_that_is_true(self, field: str) -> None:
        for value in (True, "another", 99):
            assert "accountant" in lie("gradient_clipping", put(f"accountant.{field}", value))

    @pytest.mark.parametrize("generator", ["none", "INSECURE repeatable test generator", True])
    def test_a_generator_that_makes_no_noise(self, generator: object) -> None:
        assert "generator" in lie("gradient_clipping", put("mechanism.noise.generator", generator))

    @pytest.mark.parametrize("scale", [-0.5, 0.0, math.nan, math.inf, "0.5", True, None])
    def test_a_frame_without_a_scale(self, scale: object) -> None:
        assert lie("gradient_clipping", put("mechanism.frame.scale", {"1.bias": scale}))
        change = put("mechanism.frame.scale", {"1.bias": 0.5, "1.weight": scale})
        assert lie("gradient_clipping", change)


class TestWeights:
    @pytest.mark.parametrize("name", ["gradient_clipping", "dp_sgd", "tracked_release"])
    @pytest.mark.parametrize("dimension", [1, 7, 10**6])
    def test_a_dimension_that_is_not_the_files(self, name: str, dimension: int) -> None:
        def change(parameters: dict[str, Any]) -> None:
            parameters.get("history", {}).get("recipe", parameters)["dimension"] = dimension

        assert "dimension" in consistent_lie(name, change)

    def test_tensors_that_the_file_does_not_hold(self) -> None:
        change = put("mechanism.tensors", ["1.bias", "2.weight"])
        assert "does not hold" in lie("dp_sgd", change)

    def test_a_head_in_single_precision(self) -> None:
        case = _with_weights("tracked_release", dtype="float32")
        assert "float64" in refused(case.statement, case.weights)

    def test_a_head_whose_numbers_are_not_on_the_grid(self) -> None:
        case = _with_weights("tracked_release", dtype="float64")
        assert "grid" in refused(case.statement, case.weights)

    def test_a_head_beside_other_tensors(self) -> None:
        case = _with_weights("tracked_release", dtype="float64", more={"bias": (3,)})
        assert "not a linear head" in refused(case.statement, case.weights)

    def test_a_file_that_is_none(self) -> None:
        case = _about(synthetic()["tracked_release"].statement, b"no weights")
        assert "not a safetensors file" in refused(case.statement, case.weights)

    @pytest.mark.parametrize("name", ["gradient_clipping", "tracked_release"])
    def test_noise_that_is_said_not_to_be_there(self, name: str) -> None:
        assert "no noise" in lie(name, put("mechanism.noise", None))


class TestForm:
    @pytest.mark.parametrize("name", ["exclusion", "gradient_clipping", "as_trained"])
    def test_a_field_twice(self, name: str) -> None:
        case = synthetic()[name]
        text = case.payload.decode()
        twice = text.replace('"basis":', '"basis": "unlearned", "basis":', 1).encode()
        bundle = json.dumps(signed_payload(twice, SIGNER)).encode()
        with pytest.raises(VerificationError, match="statement: not a certificate"):
            verify(bundle=bundle, weights=case.weights, trusted=KEYS)

    @pytest.mark.parametrize("facts", [{"basis": "certified_release"}, {"sha256": "00" * 32}])
    def test_an_entry_of_the_log_that_says_something_else(self, facts: dict[str, str]) -> None:
        case = synthetic()["gradient_clipping"]
        bundle = json.dumps(signed_payload(case.payload, SIGNER, **facts)).encode()
        with pytest.raises(VerificationError, match="log: the entry is about something else"):
            verify(bundle=bundle, weights=case.weights, trusted=KEYS)

    @pytest.mark.parametrize(("seconds", "accepted"), [(-90, False), (-30, True), (30, True)])
    def test_certified_after_it_was_recorded(self, seconds: int, accepted: bool) -> None:
        case = synthetic()["gradient_clipping"]
        moment = statements.TIMES.certified_at.timestamp() + seconds
        recorded_at = statements.NOW.fromtimestamp(moment, statements.NOW.tzinfo).isoformat()
        facts = {"recorded_at": recorded_at}
        bundle = json.dumps(signed_payload(case.payload, SIGNER, **facts)).encode()
        try:
            verify(bundle=bundle, weights=case.weights, trusted=KEYS)
        except VerificationError as error:
            assert not accepted and error.step == "log"  # noqa: PT018, PT017
        else:
            assert accepted


def test_an_honest_history_is_the_accountants_own() -> None:
    """The verifier's reading of a history and the accountant's agree."""
    for name in ("tracked_release", "projected_noisy_sgd", "noisy_gd_convex"):
        stated = synthetic()[name].statement["predicate"]["mechanism"]["parameters"]
        history = History.from_json(stated["history"])
        assert history.forgotten() == mechanisms.FORGOTTEN
        assert history.to_json() == stated["history"]


def _with_weights(name: str, *, dtype: str, more: dict[str, tuple[int, ...]] = {}) -> Case:  # noqa: B006
    weights = statements.weights_of(statements.HEAD | more, dtype)
    return _about(synthetic()[name].statement, weights)


def _in_a_ball(case: Case, radius: float) -> Case:
    mechanism = case.statement["predicate"]["mechanism"]
    parameters = deepcopy(mechanism["parameters"])
    parameters["history"]["recipe"]["radius"] = radius
    statement = statements.restating_claims(
        case.statement, mechanism=mechanism["name"], parameters=parameters
    )
    return Case(statement, case.weights)


def _about(statement: dict[str, Any], weights: bytes) -> Case:
    changed = deepcopy(statement)
    changed["subject"][0]["digest"]["sha256"] = statements.digest_of(weights)
    return Case(changed, weights)


class TestDevices:
    @pytest.mark.parametrize(
        "fields", [{"devices": 3}, {"parallelism": "full_shard"}], ids=["alone", "how alone"]
    )
    def test_devices_without_how_they_divided_the_work(self, fields: dict[str, Any]) -> None:
        reason = lie("gradient_clipping", lambda said: said["mechanism"].update(fields))
        assert "devices that did not divide" in reason

    @pytest.mark.parametrize("name", ["projected_noisy_sgd", "tracked_release", "exact_training"])
    def test_several_for_a_mechanism_that_is_not_divided(self, name: str) -> None:
        fields = {"devices": 3, "parallelism": "full_shard"}
        reason = lie(name, lambda said: said["mechanism"].update(fields))
        assert "several devices for what one computes" in reason

    @pytest.mark.parametrize("name", ["gradient_clipping", "model_clipping", "retraining"])
    def test_several_that_divided_the_work_are_accepted(self, name: str) -> None:
        case = synthetic()[name]
        statement = deepcopy(case.statement)
        said = {"devices": 3, "parallelism": "full_shard"}
        statement["predicate"]["mechanism"].update(said)
        payload = json.dumps(statement).encode()
        bundle = json.dumps(signed_payload(payload, SIGNER)).encode()
        verify(bundle=bundle, weights=case.weights, trusted=KEYS)
