"""What is kept of a lineage is what its records are, whoever changes them at the same time."""

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier

import pytest
from sqlalchemy import Engine, select, text

from app.domain.architectures import ArchitectureSpec
from app.registry import counts
from app.registry.counts import Counts
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import RecordRow
from app.registry.forecasts import Occasion
from app.registry.membership import Membership
from app.registry.training_set import TrainingSet
from app.services import Services
from tests.support.exact_heads import carry_out
from tests.support.logbook import faults
from tests.support.patience import PATIENCE_S
from tests.support.workshop import DATASET, RECORDS, Workshop, record_ids

MEMBERS = 3
ENSEMBLE = ArchitectureSpec("ensemble", members=MEMBERS, of=ArchitectureSpec("logistic"))
LINEAGE = Membership(10**9, 0, b"\x07" * 32, 0.25, is_imported=False)
LINEAGES = {
    "plain": LINEAGE,
    "nothing held out": replace(LINEAGE, held_out_fraction=0.0),
    "only the first push": replace(LINEAGE, through=RECORDS),
    "begun after a request": replace(LINEAGE, after_epoch=1),
    "imported after a request": replace(LINEAGE, after_epoch=1, is_imported=True),
    "one member": replace(LINEAGE, members=1),
    "members": replace(LINEAGE, members=5, after_epoch=2),
    "many members": replace(LINEAGE, members=997, split_salt=b"\xa5" * 32),
}


@pytest.mark.parametrize("lineage", LINEAGES)
@pytest.mark.parametrize("begun", [0, 2])
def test_postgres_counts_as_membership_decides(
    workshop: Workshop, lineage: str, begun: int
) -> None:
    workshop.push(60, first=RECORDS)
    workshop.forget("record-0", "record-1", "record-50")
    workshop.forget("record-2", subjects=["subject-3"])
    workshop.forget("record-70", "record-71")
    membership = LINEAGES[lineage]
    found: dict[int, Counter[str]] = {}
    with workshop.transaction() as session:
        dataset = datasets.dataset_named(session, DATASET).id
        for record in filter(membership.includes, session.scalars(select(RecordRow))):
            ended = record.forgotten_epoch
            is_in = {"records"}
            is_in |= {"retained"} if ended is None else set()
            is_in |= {"read"} if ended is None or ended > begun else set()
            if membership.is_held_out(record):
                is_in = {"held_out_records"} | ({"held_out"} if ended is None else set())
            member = membership.member_of(record)
            found.setdefault(member, Counter()).update(is_in)
        expected = [Counts(member, **one) for member, one in sorted(found.items())]
        assert counts.counted(session, dataset, membership, begun_at_epoch=begun) == expected


def test_the_counts_of_members_follow_what_requests_name(workshop: Workshop) -> None:
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining")
    carry_out(workshop)
    workshop.push(8, first=RECORDS)
    learned, held_out = workshop.split()
    workshop.forget(*learned[:6], held_out[0], f"record-{RECORDS}")
    workshop.replace(learned[7], held_out[1])
    with workshop.transaction() as session:
        model = workshop.model()
        whole = TrainingSet(session, model)
        parts = whole.by_member(range(MEMBERS))
        kept = session.query(counts.ModelCountRow).all()
        assert {row.member: row.retained for row in kept} == {
            member: len(seqs) for member, seqs in parts.items()
        }
        assert sum(row.held_out for row in kept) == len(held_out) - 2
        assert Occasion.of(session, model) == Occasion.of(session, model, whole)
    assert faults(workshop.services) == []


def test_no_order_of_pushes_requests_and_trainings_leaves_a_count_wrong(
    workshop: Workshop, services: Services
) -> None:
    """Each thread does the same over and over; all begin at once."""
    for name in ("one", "two"):
        workshop.train(name)
    workshop.define("brought", upload=True)
    learned = record_ids()[: RECORDS // 2]
    works: tuple[Iterable[Callable[[], object]], ...] = (
        [partial(workshop.push, 8, first=first) for first in range(RECORDS, RECORDS + 40, 8)],
        [partial(workshop.forget, record) for record in learned[::2]],
        [partial(workshop.forget, *learned[n - 1 : n + 1]) for n in range(1, len(learned), 2)],
        [partial(workshop.retrain, "one"), partial(workshop.work, "one")] * 3,
        [partial(workshop.upload, "brought")],
    )
    ready = Barrier(len(works))

    def carry_out_all(work: Iterable[Callable[[], object]]) -> None:
        ready.wait(PATIENCE_S)
        for step in work:
            step()

    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(carry_out_all, work) for work in works]:
            done.result(4 * PATIENCE_S)
    assert faults(services) == []
    for name in ("one", "two", "brought"):
        with workshop.transaction() as session:
            model = workshop.model(name)
            whole = TrainingSet(session, model)
            assert Occasion.of(session, model) == Occasion.of(session, model, whole)


def test_no_model_is_withdrawn_for_a_count_alone(workshop: Workshop, app_database: Engine) -> None:
    workshop.forged = True
    workshop.train()
    with app_database.begin() as connection:
        connection.execute(text("UPDATE model_counts SET retained = 1"))
    request = workshop.forget(workshop.split()[0][0])
    workshop.unlearn()
    assert workshop.request(request).state == "certified"


def test_records_that_come_while_weights_are_brought_are_counted(
    workshop: Workshop, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are part of the model, as all that are there when its weights are stored."""
    workshop.define("brought", upload=True)
    put = services.blobs.put

    def meanwhile(*what: object, **more: object) -> object:
        workshop.push(8, first=RECORDS)
        workshop.forget("record-0")
        return put(*what, **more)

    monkeypatch.setattr(type(services.blobs), "put", lambda _self, *a, **k: meanwhile(*a, **k))
    workshop.upload("brought")
    monkeypatch.undo()
    with workshop.transaction() as session:
        kept = counts.total(session, workshop.model("brought"))
    assert kept.records + kept.held_out_records == RECORDS + 8
    assert kept.retained + kept.held_out == RECORDS + 7
    assert faults(services) == []


def test_a_dataset_counts_what_it_got_forgot_and_erased(workshop: Workshop) -> None:
    def numbers() -> tuple[int, int, int]:
        with workshop.transaction() as session:
            return datasets.counts(session, datasets.dataset_named(session, DATASET).id)

    workshop.push(8, first=RECORDS - 4)
    assert numbers() == (RECORDS + 4, 0, 0)
    workshop.train()
    workshop.forget(workshop.split()[0][0])
    assert numbers() == (RECORDS + 3, 1, 0)
    workshop.unlearn()
    workshop.services.clean_up()
    assert numbers() == (RECORDS + 3, 0, 1)
    workshop.replace("record-30")
    assert numbers() == (RECORDS + 3, 1, 1)
