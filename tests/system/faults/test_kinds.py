"""Ensembles of six kinds leave members out and refill them, killed in each: once, byte for byte."""

import json
import os
from pathlib import Path

import pytest
import safetensors.numpy

from app.domain.architectures import by_member
from tests.support.adapters import EXAMPLE
from tests.support.ensembles import KINDS, RECORDS_EACH, allowed_networks
from tests.support.facts import (
    assert_head_verifies,
    assert_ledger_in_order,
    assert_log_without_fault,
    assert_only_the_head_is_served,
    await_completed,
    only_what_is_current_is_stored,
)
from tests.support.patience import PATIENCE_S, until
from tests.support.service import kill, running
from tests.system.faults.matrix.cases import learned_by_member

pytestmark = pytest.mark.nightly

MEMBERS = 4
FAIR = Path(__file__).parents[2] / "support/fair"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    paths = os.pathsep.join(map(str, (FAIR, EXAMPLE.parents[1], EXAMPLE)))
    with pytest.MonkeyPatch.context() as patched:
        allowed = json.dumps(allowed_networks(folder, patched))
        more = {"EXPUNGE_ALLOWED_FACTORIES": allowed, "PYTHONPATH": paths}
        with running(folder / "data", **more) as service, service.second_worker():
            yield service


class Ensemble:
    """An ensemble of a kind, under the kind's name, on a dataset of its own."""

    def __init__(self, service, client, folder, name):
        self.client, self.folder, self.name, self._kind = client, folder, name, KINDS[name]
        # A run meets each request: there is no answer that waits for a window.
        of_run = {"minimum_members": 2, "window_s": 0.5}
        self._kind.define(client.http, dataset=name, model=name, members=MEMBERS, **of_run)
        client.wait_for_model(name, timeout_s=PATIENCE_S)
        self._learned = learned_by_member(service, name, members=MEMBERS, each=RECORDS_EACH)

    def members(self):
        """Return the bytes of the newest version's members, whose certificate verifies."""
        tensors = safetensors.numpy.load_file(
            assert_head_verifies(self.client, self.name, self.folder)
        )
        return {
            member: {own: tensors[name].tobytes() for own, name in names.items()}
            for member, names in by_member(tensors).items()
        }

    def forget(self, member):
        """Have a person of a member forgotten; return the request's id."""
        row = RECORDS_EACH * self._learned[member].pop()
        (person,) = self._kind.rows([row])[self._kind.columns["subject_id"]].to_pylist()
        return self.client.forget(self.name, subject_ids=[person])["id"]

    def refill(self):
        return self.client.refill(self.name)["latest_run"]["id"]

    def ended(self, run):
        return until(lambda: (now := self.client.run(run))["state"] == "published" and now)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_while_members_are_left_out_and_refilled(kind, service, client, tmp_path):
    ensemble = Ensemble(service, client, tmp_path, kind)
    first = ensemble.members()
    assert first.keys() == set(range(MEMBERS))

    service.points.arm("before_commit", "SIGKILL")
    assert await_completed(client, ensemble.forget(0))["attempt"] == 2
    kept = {member: first[member] for member in (1, 2, 3)}
    assert ensemble.members() == kept

    for point in ("mid_training", "before_commit"):
        service.points.arm(point, "SIGKILL")
    assert ensemble.ended(ensemble.refill())["attempt"] == 3
    second = ensemble.members()
    assert second == kept | {0: second[0]}
    assert second[0] != first[0]

    # A refill is killed while another member is left out beside it, and so is who does that.
    await_completed(client, ensemble.forget(1))
    service.points.arm("mid_training", "SIGSTOP")
    refill = ensemble.refill()
    (sleeper,) = service.frozen()
    service.points.arm("before_publish", "SIGKILL")
    assert await_completed(client, ensemble.forget(2))["attempt"] == 2
    kill([sleeper])
    ensemble.ended(refill)
    third = ensemble.members()
    assert third.keys() >= {0, 1, 3}
    assert third[1] != first[1]
    assert third.get(2) != first[2]
    assert (third[0], third[3]) == (second[0], first[3])

    assert service.points.waiting() == []
    assert assert_only_the_head_is_served(client, kind) == 6
    until(lambda: only_what_is_current_is_stored(service))
    with service.database() as database, database.transaction() as session:
        assert_ledger_in_order(session)
    assert_log_without_fault(service, client, kept=b"")
