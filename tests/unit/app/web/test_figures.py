"""Where everything in a chart is."""

from itertools import pairwise

import pytest

from app.web.figures import by_name, epsilon_curve


def test_a_chart_says_what_it_shows_and_is_as_high_as_its_largest_number() -> None:
    chart = by_name(["v1", "v2", "v3"], [None, 30, 12], title="accuracy")
    assert chart is not None
    assert chart.label == "accuracy. at most 30, 12 at v3."
    assert [text for _, text in chart.ticks] == ["0", "10", "20", "30", "40"]
    line = chart.lines[-1]
    assert [x for x, _ in line.points] == pytest.approx([50, 500 / 6])
    assert line.points[0][1] == pytest.approx(chart.ticks[3][0])
    assert line.dots


def test_baselines_and_a_limit_stand_beside_the_numbers() -> None:
    chart = by_name(["v1", "v2"], [0.9, 0.7], title="score", baselines=[0.5, None], limit=0.8)
    assert chart is not None
    assert chart.label.endswith("The limit is 0.8.")
    limit, baseline, score = chart.lines
    assert (limit.kind, baseline.kind, score.kind) == ("limit", "planned", "reported")
    (x, height), (end, same) = limit.points
    assert (x, end, height) == (0, 100, same)
    first, last = (y for _, y in score.points)
    assert first < height < last < baseline.points[0][1]  # from above
    higher = by_name(["v1"], [3], title="error", limit=30)
    assert higher is not None
    assert higher.ticks[-1][1] == "40"


def test_there_is_no_chart_without_numbers() -> None:
    assert by_name([], [], title="x") is None
    assert by_name(["a"], [None], title="x") is None
    assert by_name(["a"], [0.0], title="x") is not None
    assert epsilon_curve([], [], target=1.0, steps=9) is None
    assert epsilon_curve([(1, 0.0)], [], target=1.0, steps=9) is None


@pytest.mark.parametrize(("count", "length"), [(1, 5), (3, 16), (6, 16), (12, 6), (26, 100)])
def test_no_name_is_over_another_on_a_telephone(count: int, length: int) -> None:
    chart = by_name(["n" * length] * count, [1.0] * count, title="x")
    assert chart is not None
    assert 1 <= len(chart.names) <= 6
    assert all(len(name) <= 16 for _, name, _ in chart.names)
    shown = [(2.3 * x, 6.5 * len(name)) for x, name, everywhere in chart.names if everywhere]
    assert shown
    assert all(b - a >= wide for (a, wide), (b, _) in pairwise(shown))


def test_a_curve_falls_towards_its_target_on_a_logarithmic_scale() -> None:
    planned = [(1, 100.0), (10, 10.0), (100, 1.0)]
    chart = epsilon_curve(planned, [(10, 12.0)], target=1.0, steps=100)
    assert chart is not None
    plan, target, reported = chart.lines
    (first, second, last) = plan.points
    assert second[1] - first[1] == pytest.approx(last[1] - second[1])
    assert [x for x, _ in plan.points] == pytest.approx([1, 10, 100])
    assert {y for _, y in target.points} == {last[1]}
    assert reported.dots
    assert first[1] < reported.points[0][1] < second[1]
    assert chart.label == "After 10 of 100 steps ε is 12; the target is 1."
    assert [name for _, name, _ in chart.names] == ["0", "25", "50", "75", "100"]
    assert [text for _, text in chart.ticks] == ["1", "2", "5", "10", "20", "50", "100"]


@pytest.mark.parametrize("largest", [1.0, 140.0, 1e4, 1e9, 1e30])
def test_a_curve_has_few_levels(largest: float) -> None:
    chart = epsilon_curve([(1, largest)], [], target=0.5, steps=1)
    assert chart is not None
    assert 1 <= len(chart.ticks) <= 7
    assert chart.label == "No step has been reported yet; the target is 0.5."
