"""How often a run reports."""

import pytest

from workers.leases.reporting import Throttle


@pytest.mark.parametrize(("report_s", "most"), [(0.001, 51), (0.5, 11)])
def test_reports_take_at_most_a_third_of_the_time(report_s: float, most: int) -> None:
    now, reports, steps = 0.0, [], 1000
    throttle = Throttle(lambda: now)

    def report() -> None:
        nonlocal now
        reports.append(step)
        now += report_s

    for step in range(1, steps + 1):
        now += 0.01  # what a step takes
        throttle.report(step, steps, report)
    assert (reports[0], reports[-1]) == (1, steps)
    assert 3 <= len(reports) <= most
    assert report_s * (len(reports) - 2) <= now / 3
