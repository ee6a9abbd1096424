"""The table of problems, of which the documentation has a page."""

import pytest

from app.api.protocol import errors, problem_types
from app.api.protocol.problem_types import PROBLEM_TYPES
from app.domain import errors as causes


def test_every_mapped_error_has_a_documented_type() -> None:
    assert {name for _, name in errors._PROBLEMS} <= set(PROBLEM_TYPES)
    assert set(errors._OF_STATUS.values()) <= set(PROBLEM_TYPES)
    for status, name in errors._OF_STATUS.items():
        assert PROBLEM_TYPES[name].status == status


def test_no_mapping_hides_behind_its_parent() -> None:
    seen: list[type] = []
    for kind, _ in errors._PROBLEMS:
        assert not any(issubclass(kind, earlier) for earlier in seen), kind
        seen.append(kind)


@pytest.mark.parametrize("kind", PROBLEM_TYPES.values(), ids=list(PROBLEM_TYPES))
def test_each_type_is_explained_with_an_example(kind: problem_types.ProblemType) -> None:
    assert kind.meaning.endswith(".")
    assert kind.detail
    assert kind.uri == f"urn:expunge:problem:{kind.name}"
    assert kind.body(kind.detail, kind.members)["status"] == kind.status


def test_types_keep_their_uris() -> None:
    """Callers decide by them: names are added here, never changed."""
    assert set(PROBLEM_TYPES) >= {
        "bad-request", "unauthenticated", "missing-scope", "not-found", "not-ready",
        "method-not-allowed", "conflict", "call-in-flight", "gone", "precondition-failed",
        "payload-too-large", "unsupported-media-type", "range-not-satisfiable", "invalid-input",
        "idempotency-key-reused", "invalid-records", "unknown-records", "parameter-out-of-range",
        "no-plan", "internal", "corrupt-log", "corrupt-object", "unavailable",
        "storage-unavailable",
    }  # fmt: skip


def test_what_no_type_is_for_is_told_as_internal() -> None:
    for kind in (causes.ConfigurationError, causes.SealedStateError):
        answer = errors.problem_of(kind("secret"))
        assert (answer.status_code, b"secret" in answer.body) == (500, False)
