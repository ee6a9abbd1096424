"""Clocks that are wrong: what is certified is dated by the database's, which may be set back."""

import sys
from datetime import datetime, timedelta

import pytest

from tests.integration.app.ledger.certificates.test_present_release import HEAD, verified
from tests.support.scenes import in_the_past
from tests.support.workshop import Workshop
from workers import jobs


@pytest.mark.parametrize("hours", [-1, 1])
def test_certificates_hold_whatever_a_hosts_clock_says(services, monkeypatch, hours):
    class Wrong(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(hours=hours)

    workshop = Workshop(services)
    for name, module in list(sys.modules.items()):
        if name.startswith(("app.ledger", "app.ledger.models", "workers")) and hasattr(
            module, "datetime"
        ):
            monkeypatch.setattr(module, "datetime", Wrong)

    def work():
        run_id = workshop.active_run()
        jobs.execute_run(run_id)
        run = workshop.run(run_id)
        assert run.state == "published", run.failure_reason

    workshop.define(**HEAD)
    work()
    learned, held_out = workshop.split()
    covered, excluded = workshop.forget(learned[0]), workshop.forget(held_out[0])
    for request, name in ((covered, learned[0]), (excluded, held_out[0])):
        verified(workshop, request, name)
    workshop.retrain()
    waiting = workshop.forget(learned[1])
    work()
    stated = verified(workshop, waiting, learned[1])
    assert stated["basis"] == "excluded_from_training"


def test_a_clock_set_back_while_a_request_waits_leaves_its_certificate_valid(services):
    workshop = Workshop(services)
    workshop.train()
    learned = workshop.split()[0][0]
    workshop.retrain()
    with in_the_past(timedelta(hours=-1)):
        request = workshop.forget(learned)
    workshop.work()
    stated = verified(workshop, request, learned)
    assert stated["times"]["started_at"] == stated["times"]["certified_at"]
