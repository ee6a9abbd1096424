"""``/v1/log`` as an outsider verifies it."""

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text

from app.domain.merkle import leaf_hash, verify_consistency, verify_inclusion
from app.domain.states import Scope
from app.evidence.certificates.note import Checkpoint, NoteKey, open_checkpoint, origin_of
from app.services import Services
from tests.support.logbook import bodies, forging, sign, write


@pytest.fixture
def written(services: Services, api: TestClient) -> list[bytes]:
    """A log of many entries, signed; its texts."""
    write(services, 20)
    sign(services)
    return bodies(services)


def _checkpoint(api: TestClient) -> Checkpoint:
    answer = api.get("/v1/log/checkpoint")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    keys = api.get("/.well-known/expunge-keys.json").json()["keys"]
    (key,) = (key for key in keys if key["purpose"] == "certificates")
    public_key = load_pem_public_key(key["pem"].encode())
    return open_checkpoint(answer.content, [NoteKey(origin_of(answer.content), public_key)])


def _bytes(proof: list[str]) -> list[bytes]:
    return [bytes.fromhex(hashed) for hashed in proof]


def test_an_outsider_verifies_an_entry_against_a_signed_checkpoint(
    api: TestClient, written: list[bytes]
) -> None:
    checkpoint = _checkpoint(api)
    assert checkpoint.size == len(written)
    for index in (0, 7, len(written) - 1):
        entry = api.get(f"/v1/log/entries/{index}").json()
        assert entry["body"].encode() == written[index]
        places = {"index": index, "size": checkpoint.size}
        answer = api.get("/v1/log/proofs/inclusion", params=places).json()
        assert answer["leaf_hash"] == entry["leaf_hash"] == leaf_hash(written[index]).hex()
        assert answer["root"] == checkpoint.root.hex()
        verify_inclusion(
            leaf=leaf_hash(entry["body"].encode()),
            root=checkpoint.root,
            proof=_bytes(answer["proof"]),
            **places,
        )


def test_an_outsider_verifies_that_nothing_was_rewritten(
    services: Services, api: TestClient, written: list[bytes]
) -> None:
    old = _checkpoint(api)
    write(services, 5, 8, sign=True)
    new = _checkpoint(api)
    answer = api.get("/v1/log/proofs/consistency", params={"from": old.size, "to": new.size})
    assert answer.status_code == 200
    found = answer.json()
    assert (found["old_root"], found["new_root"]) == (old.root.hex(), new.root.hex())
    verify_consistency(
        old_size=old.size,
        old_root=old.root,
        new_size=new.size,
        new_root=new.root,
        proof=_bytes(found["proof"]),
    )


def test_entries_are_listed_page_by_page(api: TestClient, written: list[bytes]) -> None:
    found, start, pages = [], 0, 0
    while start is not None:
        answer = api.get("/v1/log/entries", params={"start": start, "limit": 7}).json()
        found += answer["entries"]
        start = answer["next"]
        pages += 1
    assert pages == (len(written) + 6) // 7
    assert [entry["index"] for entry in found] == list(range(len(written)))
    assert [entry["body"].encode() for entry in found] == written
    beyond = api.get("/v1/log/entries", params={"start": len(written)}).json()
    assert beyond == {"entries": [], "next": None}


ABSENT = [
    ("entries/1000", 404, "not-found"),
    ("entries/-1", 404, "not-found"),
    (f"entries/{2**70}", 404, "not-found"),
    ("entries/first", 422, "invalid-input"),
    ("entries?start=-1", 422, "invalid-input"),
    ("entries?limit=1001", 422, "invalid-input"),
    ("proofs/inclusion?index=0", 422, "invalid-input"),
    ("proofs/inclusion?index=5&size=5", 422, "invalid-input"),
    ("proofs/inclusion?index=0&size=1000", 422, "invalid-input"),
    (f"proofs/inclusion?index=0&size={2**63}", 422, "invalid-input"),
    ("proofs/inclusion?index=-1&size=5", 422, "invalid-input"),
    ("proofs/consistency?from=3&to=2", 422, "invalid-input"),
    ("proofs/consistency?from=3&to=1000", 422, "invalid-input"),
]


def test_what_is_not_there_is_a_problem(
    api: TestClient, written: list[bytes], subtests: pytest.Subtests
) -> None:
    for path, status, problem in ABSENT:
        with subtests.test(path=path, status=status):
            answer = api.get(f"/v1/log/{path}")
            assert answer.status_code == status
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json()["type"] == f"urn:expunge:problem:{problem}"


def test_before_the_first_checkpoint_there_is_none(api: TestClient) -> None:
    answer = api.get("/v1/log/checkpoint")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:expunge:problem:not-ready")


def test_a_damaged_log_says_so(api: TestClient, app_database: Engine, written: list[bytes]) -> None:
    with forging(app_database) as connection:
        connection.execute(text("DELETE FROM tree_nodes"))
    answer = api.get("/v1/log/proofs/inclusion?index=0&size=20")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:expunge:problem:corrupt-log")


@pytest.mark.parametrize(
    "path",
    ["checkpoint", "entries", "entries/0", "proofs/inclusion?index=0&size=1",
     "proofs/consistency?from=0&to=1"],
)  # fmt: skip
def test_the_log_is_read_with_its_own_scope(
    caller_of, services: Services, written: list[bytes], path: str
) -> None:
    assert caller_of(Scope.LOG_READ).get(f"/v1/log/{path}").status_code == 200
    assert caller_of(Scope.MODELS_READ).get(f"/v1/log/{path}").status_code == 403
    assert caller_of().get(f"/v1/log/{path}").status_code == 401
