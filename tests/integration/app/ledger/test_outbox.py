"""When the outbox hands a row out, whatever the clock does."""

import pytest
from sqlalchemy import text

from app.ledger import outbox
from tests.support.workshop import Workshop

TOPIC = outbox.Topic.SCHEDULE_MODEL


def _due(workshop: Workshop) -> list[str]:
    with workshop.transaction() as session:
        return [row.subject_id for row in outbox.due(session, TOPIC)]


def _post(workshop: Workshop, *, delay_s: float) -> None:
    with workshop.transaction() as session:
        outbox.post(session, TOPIC, "model", delay_s=delay_s)


def _set_clock(workshop: Workshop, by: str) -> None:
    """Move the database's clock, as seen from the moments that the outbox has written down."""
    with workshop.transaction() as session:
        session.execute(
            text(
                "UPDATE outbox SET posted_at = posted_at - CAST(:by AS interval),"
                " available_at = available_at - CAST(:by AS interval)"
            ),
            {"by": by},
        )


@pytest.mark.parametrize(("delay_s", "due"), [(0.0, ["model"]), (60.0, [])])
def test_a_row_waits_for_its_delay_and_no_longer(
    workshop: Workshop, delay_s: float, due: list[str]
) -> None:
    _post(workshop, delay_s=delay_s)
    assert _due(workshop) == due


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
def test_a_row_is_not_held_up_by_a_clock_that_is_set_back(
    workshop: Workshop, delay_s: float
) -> None:
    _post(workshop, delay_s=delay_s)
    _set_clock(workshop, "-1 hour")
    assert _due(workshop) == ["model"]


def test_a_delay_survives_a_clock_that_was_set_back_by_less_than_has_passed(
    workshop: Workshop,
) -> None:
    _post(workshop, delay_s=60.0)
    _set_clock(workshop, "40 seconds")
    _set_clock(workshop, "-20 seconds")
    assert _due(workshop) == []
    _set_clock(workshop, "41 seconds")
    assert _due(workshop) == ["model"]
