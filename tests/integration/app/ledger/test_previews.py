"""A preview of a request takes what it needs of the ledger's locks, and no longer."""

import pytest
from sqlalchemy import select

from app.ledger import previews
from app.ledger.new_requests import NewForgetRequest
from app.planning.planner import make_plan
from app.registry.datasets.tables import DatasetRow
from tests.support.workshop import DATASET, Workshop


def test_no_weights_are_read_while_the_dataset_is_locked(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, read = workshop.services, workshop.services.blobs.read
    reads = []

    def unlocked(blob_id: str) -> bytes:
        with workshop.transaction() as session:
            session.execute(select(DatasetRow.id).with_for_update(nowait=True))
        reads.append(blob_id)
        return read(blob_id)

    workshop.define(
        architecture="linear_head",
        recipe={"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25},
        mechanism="tracked_release",
        epsilon=20.0,
        parameters={"noise_std": 5.0},
    )
    released = workshop.work().blob_id
    learned = workshop.split()[0]
    monkeypatch.setattr(services.blobs, "read", unlocked)
    asked = NewForgetRequest(DATASET, record_ids=learned[:1])
    found = previews.preview(
        services.database, services.acceptance, asked, api_key_id=workshop.key_id, make=make_plan
    )
    assert [effect.obligation.state for effect in found.effects] == ["certified"]
    assert reads == [released]
