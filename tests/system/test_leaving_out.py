"""Ensembles of seven kinds leave members out over HTTP, whatever comes between.

After every version: what stays is byte for byte what it was, what went is in no object that can be
read, with all keys; the certificate verifies, from the one before, and with the receipt.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from fastapi.testclient import TestClient
from numpy.typing import NDArray
from sqlalchemy import select

from app.domain import provenance
from app.domain.architectures import by_member
from app.evidence.certificates.verification import verify
from app.ledger.leaving_out import AT_ONCE_BYTES
from app.registry import repository as registry
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.tables import RecordRow
from app.registry.membership import membership_of
from app.runtime.settings import Settings
from app.services import Services
from app.storage.stores import key_store
from tests.support.ensembles import (
    KINDS,
    PEOPLE_OF_A_MEMBER,
    RECORDS_EACH,
    Kind,
    allowed_networks,
)
from tests.support.markers import Marker, marker_of_weights, search_bytes
from tests.support.opened import opened_beside, opened_objects
from workers.mechanisms.ensembles.run import EnsembleRun
from workers.recompute import recompute

LIVES = [
    ("mlp", 8),
    ("regression", 8),
    ("trees", 8),
    *(
        pytest.param(*each, marks=pytest.mark.nightly)
        for each in (("mlp", 32), ("cnn", 8), ("public", 8), ("text", 8), ("multi_label", 8))
    ),
]


@pytest.fixture
def settings(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    allowed = allowed_networks(tmp_path, monkeypatch)
    monkeypatch.setenv("EXPUNGE_ALLOWED_FACTORIES", json.dumps(allowed))
    return settings.model_copy(update={"allowed_factories": allowed})


class Life:
    """An ensemble's life over HTTP, and what is known of each of its members.

    Attributes:
        members: how many it has.
        active: the tensors of those that are active.
        gone: what must be in no object.
    """

    def __init__(
        self,
        api: TestClient,
        services: Services,
        work: Callable[[], None],
        folder: Path,
        kind: Kind,
        members: int,
    ) -> None:
        self.api, self.services, self.work = api, services, work
        self.folder, self.kind, self.members = folder, kind, members
        self.version = 0
        self.active: dict[int, dict[str, NDArray[Any]]] = {}
        self.gone: list[Marker] = []
        self.forgotten: set[str] = set()
        self._bundle: bytes | None = None
        self._seeds: dict[int, str] = {}
        kind.define(api, dataset="people", model="m", members=members)

    def post(self, path: str, body: object = None) -> dict[str, Any]:
        answer = self.api.post(path, json=body)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def get(self, path: str) -> Any:
        answer = self.api.get(path)
        assert answer.is_success, answer.text
        return answer.json()

    def patch(self, **policy: object) -> None:
        answer = self.api.patch("/v1/models/m", json={"policy": policy})
        assert answer.is_success, answer.text

    def push(self, numbers: Sequence[int]) -> dict[str, Any]:
        content = to_parquet(self.kind.rows(list(numbers)))
        answer = self.api.put("/v1/datasets/people/records", content=content)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def numbers_of(self, person: str) -> Sequence[int]:
        first = RECORDS_EACH * int(person.rpartition("-")[2])
        return range(first, first + RECORDS_EACH)

    def records_of(self, person: str) -> list[str]:
        named = self.kind.columns["record_id"]
        found: list[str] = self.kind.rows(self.numbers_of(person))[named].to_pylist()
        return found

    def people(self, member: int) -> list[str]:
        """Return those whom a member has learned from, and who are not forgotten."""
        table = self.kind.rows(range(RECORDS_EACH * PEOPLE_OF_A_MEMBER * self.members))
        names = table[self.kind.columns["subject_id"]].to_pylist()
        with self.services.database.transaction() as session:
            model = registry.model_named(session, "m")
            membership = membership_of(model)
            assert membership is not None
            rows = {row.subject_key: row for row in session.scalars(select(RecordRow))}
        subject = self.services.forget_requests.pseudonyms.subject
        keys = {name: subject(model.dataset_id, name) for name in dict.fromkeys(names)}
        return [
            name
            for name, key in keys.items()
            if name not in self.forgotten
            and not membership.is_held_out(rows[key])
            and membership.member_of(rows[key]) == member
        ]

    def forget(self, *people: str, records: Sequence[str] = ()) -> tuple[str, bytes]:
        """Have people forgotten; return the request, and its receipt."""
        self.forgotten |= set(people)
        ids = {"subject_ids": list(people), "record_ids": list(records)}
        answer = self.post("/v1/forget-requests", {"dataset": "people", **ids})
        return answer["id"], json.dumps(answer | ids).encode()

    def met(self, request: tuple[str, bytes], *, at_once: bool = False) -> dict[str, Any]:
        """Check that a request is met, and that its receipt fits; return its certificate."""
        if not at_once or self.size() > AT_ONCE_BYTES:
            self.work()
        state = self.get(f"/v1/forget-requests/{request[0]}")
        assert [each["state"] for each in state["obligations"]] == ["certified"], state
        self.look()
        (found,) = self.get(f"/v1/forget-requests/{request[0]}/certificates")
        self._bundle = json.dumps(found["bundle"]).encode()
        return self._verified(self._bundle, receipt=request[1])

    def size(self) -> int:
        with self.services.database.transaction() as session:
            head = registry.head_version(session, registry.model_named(session, "m"))
            assert head is not None
            return head.size_bytes

    def _verified(self, bundle: bytes, **more: bytes) -> dict[str, Any]:
        trusted = self.api.get("/.well-known/expunge-keys.json").content
        return verify(bundle=bundle, weights=self.folder / "weights", trusted=trusted, **more)

    def look(self) -> None:
        """Check the newest version, if it is another one than before."""
        newest = self.get("/v1/models/m/versions")["items"][0]["number"]
        if newest == self.version:
            return
        path, before = f"/v1/models/m/versions/{newest}", self.version
        self.version = newest
        content = self.api.get(f"{path}/weights").content
        (self.folder / "weights").write_bytes(content)
        bundle = self.api.get(f"{path}/certificate").content
        anew = newest == 1 or self.get("/v1/models/m")["latest_run"]["kind"] == "train"
        previous = {} if anew or self._bundle is None else {"previous": self._bundle}
        stated = self._verified(bundle, **previous)["members"]
        self._bundle = bundle
        tensors = safetensors.numpy.load(content)
        now = {
            member: {own: tensors[name] for own, name in names.items()}
            for member, names in (by_member(tensors) or {}).items()
        }
        assert sorted(now) == [at for at, each in enumerate(stated) if "out_since" not in each]
        for member, own in now.items():
            as_before = stated[member]["trained_in"] < newest
            assert as_before or stated[member]["trained_in"] == newest
            if as_before or self.kind.is_drawn:
                assert as_before == _same(own, self.active.get(member)), member
        self._take(now)
        self.services.clean_up()
        assert (
            before == 0
            or self.api.get(f"/v1/models/m/versions/{before}/weights").status_code == 410
        )
        self.search()

    def _take(self, now: dict[int, dict[str, NDArray[Any]]]) -> None:
        for member, own in self.active.items():
            if not _same(own, now.get(member)):
                self.gone += _markers(f"member {member} before {self.version}", own)
        self.active = now
        # Records that are pushed again grow the same trees again.
        again = {each.content for own in now.values() for each in _markers("", own)}
        self.gone = [each for each in self.gone if self.kind.is_drawn or each.content not in again]
        seeds = self._stored_seeds()
        assert seeds.keys() == now.keys()
        replaced = self._seeds.items() - seeds.items()
        self.gone += [Marker(f"seed of member {m}", bytes.fromhex(s)) for m, s in replaced]
        self._seeds = seeds

    def _stored_seeds(self) -> dict[int, str]:
        with self.services.database.transaction() as session:
            head = registry.head_version(session, registry.model_named(session, "m"))
        keys = key_store(self.services.settings)
        if head is None:
            return {}
        kept = opened_beside(keys, self.services.database)[head.id]
        return {member: each.seed for member, each in provenance.from_bytes(kept).items()}

    def search(self) -> None:
        """Look for what went in every object, as somebody does who has all keys that are left."""
        settings = self.services.settings
        opened = opened_objects(
            settings.data_dir / "blobs", key_store(settings), self.services.database
        )
        assert search_bytes(opened, self.gone) == []
        kept = [each for m, own in self.active.items() for each in _markers(f"member {m}", own)[:1]]
        found = {finding.marker for finding in search_bytes(opened, kept)}
        assert found == {each.name for each in kept}

    def require(self, *, out: Collection[int], anew: Iterable[int] = ()) -> None:
        """Check which members are out, and which the newest version trained."""
        assert set(self.active) == set(range(self.members)) - set(out)
        predicate = self._verified(self._bundle or b"")
        made = {
            at for at, e in enumerate(predicate["members"]) if e.get("trained_in") == self.version
        }
        assert made == set(anew)

    def end(self) -> None:
        """Archive the model: nothing of any member is left."""
        self.post("/v1/models/m/archive")
        self.work()
        self.services.clean_up()
        self._take({})
        self.search()


def _same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]] | None) -> bool:
    return (
        other is not None
        and one.keys() == other.keys()
        and all(each.tobytes() == other[name].tobytes() for name, each in one.items())
    )


def _markers(name: str, own: dict[str, NDArray[Any]]) -> list[Marker]:
    """Return those of a tensor that is its member's own from the start; of lite0 the last layer.

    None of trees that nothing has grown.
    """
    telling = (own[at] for at in own if at == "value" or ("weight" in at and at[:2] != "0."))
    longest = max(telling, key=lambda tensor: len(np.unique(tensor)))
    return marker_of_weights(name, longest) if longest.any() else []


@pytest.mark.parametrize(("kind", "members"), LIVES)
def test_members_are_left_out_and_refilled(
    api: TestClient,
    services: Services,
    work: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    members: int,
) -> None:
    life = Life(api, services, work, tmp_path, KINDS[kind], members)
    work()
    life.look()
    everyone = set(range(members))
    life.require(out=(), anew=everyone)
    people = {member: life.people(member) for member in everyone}
    order = [member for member in everyone if len(people[member]) > 3]
    floor = members // 2
    assert len(order) > floor + 1

    # One person; then two of two members, one of them by records.
    predicate = life.met(life.forget(people[order[0]][0]), at_once=True)
    assert predicate["guarantee"]["kind"] == "exact"
    life.require(out=order[:1])
    person = people[order[2]][0]
    records = life.records_of(person)
    life.forgotten.add(person)
    life.met(life.forget(people[order[1]][0], records=records), at_once=True)
    life.require(out=order[:3])

    # Of a member that is out: no version. A whole member. Down to the floor.
    before = life.version
    life.met(life.forget(people[order[0]][1]), at_once=True)
    assert life.version == before
    life.met(life.forget(*people[order[3]]), at_once=True)
    life.require(out=order[:4])
    for member in order[4:floor]:
        life.met(life.forget(people[member][0]), at_once=True)
    life.require(out=order[:floor])

    # Below it, a run trains what is missing: the first that is out.
    request = life.forget(people[order[floor]][0])
    assert api.get(f"/v1/forget-requests/{request[0]}/certificates").json() == []
    life.met(request)
    (first, *rest) = sorted(order[: floor + 1])
    life.require(out=rest, anew=[first])

    # A refill, during which one of those that it trains is named again, and one that stays.
    life.patch(minimum_members=1)
    stays, meanwhile = order[floor + 1], list[object]()
    train = EnsembleRun.train

    def interrupted(run: EnsembleRun) -> Any:
        made = train(run)
        if not meanwhile:
            for person in (people[order[1]][1], people[stays][0]):
                request = life.forget(person)
                if life.size() > AT_ONCE_BYTES:  # by the dispatcher, as a worker is busy
                    services.leave_out_at_once({run.lease.model_id: None})
                meanwhile.append(life.met(request, at_once=True))
        return made

    with monkeypatch.context() as patched:
        patched.setattr(EnsembleRun, "train", interrupted)
        life.post("/v1/models/m/refill")
        work()
    life.look()
    assert len(meanwhile) == 2
    life.require(out=[order[1], stays], anew=set(rest) - {order[1], stays})

    # Cancelled: the model still owes it. Pushed again, they are new, and a training learns them.
    life.patch(window_s=3600.0)
    person = people[order[4]][1]
    request, _ = life.forget(person)
    assert api.delete(f"/v1/forget-requests/{request}").is_success
    assert life.push(life.numbers_of(person))["added"] == RECORDS_EACH
    life.patch(window_s=0.0)
    work()
    life.look()
    life.require(out=[order[1], stays, order[4]])
    life.post("/v1/models/m/retrain")
    work()
    life.look()
    life.require(out=(), anew=everyone)
    life.forgotten.discard(person)
    life.met(life.forget(person), at_once=True)
    life.require(out=[order[4]])

    # The policy's other way trains them at once.
    life.patch(forget="retrain")
    life.met(life.forget(people[order[5]][2]))
    life.require(out=[order[4]], anew=[order[5]])
    life.patch(forget="leave_out")
    life.met(life.forget(people[order[5]][3]), at_once=True)
    life.require(out=[order[4], order[5]])
    assert recompute(services, "m").is_equal
    life.end()
