"""When a deadline ends that is extended by two months."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from app.ledger.decisions import _two_months_after

SUMMER = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 3, 31, 12, tzinfo=UTC)),
        (datetime(2026, 12, 31, 23, 59, tzinfo=UTC), datetime(2027, 2, 28, 23, 59, tzinfo=UTC)),
        (datetime(2027, 12, 30, tzinfo=UTC), datetime(2028, 2, 29, tzinfo=UTC)),
        (datetime(2026, 10, 15, tzinfo=UTC), datetime(2026, 12, 15, tzinfo=UTC)),
        # A change of the clocks in between moves no moment of UTC.
        (datetime(2026, 9, 1, 1, tzinfo=SUMMER), datetime(2026, 10, 31, 23, tzinfo=UTC)),
    ],
)
def test_two_months_are_of_the_calendar_in_utc(before: datetime, after: datetime) -> None:
    assert _two_months_after(before) == after
