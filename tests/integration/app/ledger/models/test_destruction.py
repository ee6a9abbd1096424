"""Whoever works with a dataset while it is destroyed leaves nothing of it, in either order."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from app.delivery.publishing import repository as publishing
from app.delivery.publishing.tables import PlacementRow
from app.domain import strict_json
from app.domain.architectures import ArchitectureSpec
from app.domain.errors import ConflictError, GoneError, LeaseLostError
from app.domain.states import ACTIVE_RUN_STATES
from app.ledger.models import destruction, endings
from app.ledger.models.destruction import Destruction
from app.ledger.tables import RunRow
from app.registry import backbones
from app.registry import repository as registry
from app.registry.datasets import features
from app.registry.datasets import repository as datasets
from app.registry.datasets.imports import service as importing
from app.registry.datasets.service import define_dataset
from app.registry.datasets.tables import DatasetRow
from app.runtime.settings import FolderPublisher, Settings
from app.storage.tables import BlobRow
from tests.support.patience import PATIENCE_S, until
from tests.support.representatives import mostly_nightly
from tests.support.weights import WEIGHTS, network_weights, public_backbone
from tests.support.workshop import DATASET, RECORDS, SCHEMA, Held, Workshop, records_parquet

OURS, OTHERS, APART = "made-of-it", "others", "apart"
ON_OURS = {"name": "logistic", "backbone": {"name": OURS, "frozen": False}}


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    publishers = {"shelf": FolderPublisher(kind="folder", path=tmp_path)}
    return settings.model_copy(update={"publishers": publishers})


@pytest.fixture
def workshop(workshop: Workshop) -> Workshop:
    """A model with a version, one that is trained, one on a backbone made of it, one apart."""
    for name in (OTHERS, APART):
        with workshop.transaction() as session:
            define_dataset(session, name=name, schema=SCHEMA)
        workshop.services.records.push(name, records_parquet())
    workshop.train("apart", dataset=APART)
    workshop.train("one")
    _bring(workshop, OURS, WEIGHTS)
    _bring(workshop, "elsewhere", network_weights(value=0.25))
    workshop.define("two")
    workshop.define("stands", architecture=ArchitectureSpec.from_json(ON_OURS), dataset=OTHERS)
    return workshop


def _bring(workshop: Workshop, name: str, weights: bytes) -> None:
    with workshop.transaction() as session:
        backbones.define_backbone(session, public_backbone(name))
        backbones.upload_weights(session, workshop.services.blobs, name, weights)
        destruction.refuse_destroyed(session, _of(session, name))


def _of(session: Session, backbone: str) -> str:
    return backbones.backbone_named(session, backbone).sha256 or ""


def _destroy(workshop: Workshop, *named: str) -> None:
    services = workshop.services
    destruction.destroy(services.database, services.signer, DATASET, named)


def _seen(workshop: Workshop) -> Destruction:
    with workshop.services.database.snapshot() as session:
        return destruction.preview(session, DATASET)


class _Importing:
    """An import that a worker holds, and its next batch."""

    def __init__(self, workshop: Workshop, tmp_path: Path) -> None:
        self.workshop = workshop
        with workshop.transaction() as session:
            url = tmp_path.as_uri()
            row = importing.request(session, dataset=DATASET, url=url, prefixes=[url])
            held = importing.lease(session, row.id, lease_s=60)
            assert held is not None
            self.id, self.token, self.dataset_id = row.id, held.fencing_token, row.dataset_id

    def __call__(self) -> None:
        records = self.workshop.services.records
        content = records_parquet(3, first=RECORDS)
        upload = records.readers.read(content, SCHEMA)

        def also(_result: object, session: Session) -> None:
            importing.holder(session, self.id, self.token)

        pushed = records.keyed(self.dataset_id, upload)
        records.store(self.dataset_id, pushed, part_of=self.id, also=also)


def _begin_import(workshop: Workshop, tmp_path: Path) -> Callable[[], object]:
    def request() -> None:
        with workshop.transaction() as session:
            url = tmp_path.as_uri()
            importing.request(session, dataset=DATASET, url=url, prefixes=[url])

    return request


def _publish(workshop: Workshop, _: Path) -> Callable[[], object]:
    held = workshop.begun("two")
    result = workshop.result(held)
    return lambda: workshop.publish(held, result)


def _write(workshop: Workshop, _: Path) -> Callable[[], object]:
    held: Held = workshop.begun("stands")
    return lambda: workshop.write(held, network_weights(value=0.75))


def _begin(workshop: Workshop, _: Path) -> Callable[[], object]:
    held = workshop.lease("two")
    return lambda: workshop.begin(held)


def _send(workshop: Workshop, _: Path) -> Callable[[], object]:
    with workshop.transaction() as session:
        place = publishing.want(session, registry.model_named(session, "one", lock=True), "shelf")
    return lambda: workshop.services.publisher().settle(place.id)


def _compute(workshop: Workshop, _: Path) -> Callable[[], object]:
    """Return what a worker does that has computed a backbone's features of another dataset."""
    with workshop.transaction() as session:
        (shard,) = datasets.shards(session, datasets.dataset_named(session, OTHERS).id)
        row = backbones.backbone_named(session, OURS)
        made_by = {"backbone_id": row.id, "weights_sha256": _of(session, OURS)}
        source = features.source_of(session, shard.id, **made_by, reading_sha256="0b" * 32)

    def add() -> None:
        with workshop.transaction() as session:
            features.add(session, workshop.services.blobs, source, b"features")

    return add


def _archive(kind: str) -> Callable[[Workshop, Path], Callable[[], object]]:
    def action(workshop: Workshop, _: Path) -> Callable[[], object]:
        def archive() -> None:
            with workshop.transaction() as session:
                if kind == "model":
                    endings.archive_model(session, "one")
                else:
                    endings.archive_model(session, "stands")
                    endings.archive_backbone(session, OURS)

        return archive

    return action


def _upload(workshop: Workshop, _: Path) -> Callable[[], object]:
    workshop.define("brought", upload=True, dataset=APART)
    return lambda: workshop.upload("brought", WEIGHTS)


ACTIONS: dict[str, Callable[[Workshop, Path], Callable[[], object]]] = {
    "publish": _publish,
    "write a result": _write,
    "begin a run": _begin,
    "push": lambda workshop, _: lambda: workshop.push(1, first=RECORDS),
    "replace": lambda workshop, _: lambda: workshop.replace("record-0"),
    "import": _Importing,
    "ask for an import": _begin_import,
    "forget": lambda workshop, _: lambda: workshop.forget("record-1"),
    "train anew": lambda workshop, _: lambda: workshop.retrain("one"),
    "define a model": lambda workshop, _: lambda: workshop.define("late"),
    "stand on its backbone": lambda workshop, _: (
        lambda: workshop.define(
            "late", architecture=ArchitectureSpec.from_json(ON_OURS), dataset=OTHERS
        )
    ),
    "bring its weights as a backbone": lambda workshop, _: (
        lambda: _bring(workshop, "again", WEIGHTS)
    ),
    "bring its weights to a model": _upload,
    "compute features": _compute,
    "send a copy": _send,
    "archive a model": _archive("model"),
    "archive a backbone": _archive("backbone"),
    "destroy": lambda workshop, _: lambda: _destroy(workshop, "elsewhere"),
}


OFTEN = ("publish", "push", "train anew", "compute features", "send a copy", "destroy")


@pytest.fixture
def standing(workshop: Workshop) -> Iterator[Callable[..., list[BaseException | None]]]:
    """Let one act up to its commit, the other until it waits or is done; return their errors."""
    met, go_on = threading.Event(), threading.Event()
    first: list[int] = []

    def stand(session: Session) -> None:
        writes = session.info.get("expunge.log.pending") or any(
            isinstance(row, features.FeatureShardRow | BlobRow) for row in session
        )
        if threading.get_ident() in first and writes and not met.is_set():
            met.set()
            assert go_on.wait(PATIENCE_S)

    def in_turn(*acts: Callable[[], object]) -> list[BaseException | None]:
        def begin() -> None:
            first.append(threading.get_ident())
            acts[0]()

        with ThreadPoolExecutor(2) as threads:
            futures: list[Future[Any]] = [threads.submit(begin)]
            try:
                until(lambda: met.is_set() or futures[0].done())
                futures.append(threads.submit(acts[1]))
                workshop.wait_for_a_lock(or_done=futures[1])
            finally:
                go_on.set()
            assert met.is_set()
            return [each.exception(PATIENCE_S) for each in futures]

    event.listen(Session, "before_commit", stand, insert=True)  # before the log is locked
    yield in_turn
    event.remove(Session, "before_commit", stand)


@pytest.mark.parametrize("it_is_first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("action", mostly_nightly(ACTIONS, *OFTEN))
def test_nothing_is_left_whoever_was_first(
    workshop: Workshop,
    standing: Callable[..., list[BaseException | None]],
    tmp_path: Path,
    action: str,
    *,
    it_is_first: bool,
) -> None:
    act = ACTIONS[action](workshop, tmp_path)
    acts = (act, lambda: _destroy(workshop)) if it_is_first else (lambda: _destroy(workshop), act)
    its, destroyed = standing(*acts)[:: 1 if it_is_first else -1]
    assert destroyed is None, destroyed
    assert its is None or isinstance(its, GoneError | ConflictError | LeaseLostError), its
    if action == "destroy":
        assert its is None

    workshop.services.clean_up()
    _settle(workshop)
    seen = _seen(workshop)
    assert seen.complete, seen
    _assert_nothing_left(workshop, tmp_path)
    with suppress(GoneError, ConflictError, LeaseLostError):
        act()  # what comes later changes nothing either
    workshop.services.clean_up()
    assert _seen(workshop).complete
    _assert_nothing_left(workshop, tmp_path)
    assert seen.statement is not None
    stated = strict_json.loads(seen.statement.entry)
    assert {each["name"] for each in stated["models"]} >= {"one", "two", "stands"}
    assert {each["name"] for each in stated["backbones"]} >= {OURS} | (
        {"elsewhere"} if action == "destroy" else set()
    )


def _settle(workshop: Workshop) -> None:
    with workshop.transaction() as session:
        places = session.scalars(select(PlacementRow.id)).all()
    for each in places:
        workshop.services.publisher().settle(each)


def _assert_nothing_left(workshop: Workshop, folder: Path) -> None:
    assert not [*folder.rglob("*.safetensors")]
    with workshop.transaction() as session:
        live = registry.models(session, limit=100)
        assert {each.name for each in live if each.archived_at is None} <= {"apart", "brought"}
        assert not session.scalars(
            select(RunRow.id).where(RunRow.state.in_(ACTIVE_RUN_STATES))
        ).all()
        blobs = (
            select(BlobRow.kind, DatasetRow.name)
            .outerjoin(DatasetRow, DatasetRow.id == BlobRow.dataset_id)
            .where(BlobRow.state != "shredded")
        )
        left = {(kind, name) for kind, name in session.execute(blobs)}
        elsewhere = backbones.backbone_named(session, "elsewhere").archived_at
    allowed = {("shard", OTHERS), ("shard", APART), ("weights", APART)}
    assert left - ({("backbone", None)} if elsewhere is None else set()) == allowed


def test_a_call_that_breaks_off_has_done_nothing(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the one that repeats it states what it is told itself, and another may add to that."""
    archive = endings.archive_model

    def breaks(session: Session, name: str) -> object:
        if name == "two":
            raise ConnectionError
        return archive(session, name)

    monkeypatch.setattr(endings, "archive_model", breaks)
    with pytest.raises(ConnectionError):
        _destroy(workshop, "elsewhere")
    monkeypatch.undo()
    seen = _seen(workshop)
    assert all(each.archived_at is None for each in (*seen.models, *seen.backbones, seen))
    assert seen.statement is None
    for named in ((), ("elsewhere",), ()):
        _destroy(workshop, *named)
    statement = _seen(workshop).statement
    assert statement is not None
    stated = strict_json.loads(statement.entry)["backbones"]
    with workshop.transaction() as session:
        rows = [backbones.backbone_named(session, each) for each in ("elsewhere", OURS)]
    assert stated == [{"id": b.id, "name": b.name, "sha256": b.sha256} for b in rows]
    assert all(row.archived_at for row in rows)
