"""Runs while the service that wraps the keys is away: a server that is stopped and started."""

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from app.domain.states import BlobState
from app.services import Services
from app.storage import file_keys
from app.storage.tables import BlobRow
from tests.support.key_keepers import Kms, Vault, running
from tests.support.patience import PATIENCE_S, until
from tests.support.workshop import Workshop
from workers import jobs
from workers import run as run_module


@pytest.fixture(params=[Kms, Vault])
def keeper(request: pytest.FixtureRequest) -> Iterator[Kms | Vault]:
    """A service of this test's own, which it may stop."""
    with running(request.param) as service:
        yield service


@pytest.mark.parametrize("point", ["after_lease", "at_target"])
def test_a_run_goes_on_where_it_was_when_the_service_is_back(
    services: Services,
    keeper: Kms | Vault,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    workshop = Workshop(services)
    workshop.define()
    monkeypatch.setattr(file_keys, "KEEP_S", 0.0)
    monkeypatch.setattr(
        run_module, "reach", lambda reached: keeper.stop() if reached == point else None
    )
    run_id = workshop.active_run()
    run = threading.Thread(target=jobs.execute_run, args=(run_id,))
    run.start()
    until(lambda: "waiting for a store" in caplog.text)
    assert "does not answer" in caplog.text
    keeper.start()
    run.join(PATIENCE_S)
    assert (workshop.run(run_id).state, workshop.run(run_id).attempt) == ("published", 1)
    with workshop.transaction() as session:
        assert set(session.scalars(select(BlobRow.state))) == {BlobState.LIVE}
