"""Where everything in a chart is."""

from itertools import pairwise

import pytest

from app.web.figures.charts import Series, bars, lines


def test_a_chart_says_what_it_shows_and_is_as_high_as_its_largest_number() -> None:
    chart = bars([("1 Jan", 0), ("8 Jan", 30), ("15 Jan", 12)], title="Requests a week")
    assert chart is not None
    assert chart.label == "Requests a week. at most 30, 12 at 15 Jan."
    assert [text for _, text in chart.ticks] == ["0", "10", "20", "30", "40"]
    heights = [y for _, y in chart.series[0]]
    assert heights[0] == chart.ticks[0][0] == chart.bottom
    assert heights[1] == pytest.approx(chart.ticks[3][0])
    assert [x for x, _ in chart.series[0]] == pytest.approx([100 / 6, 50, 500 / 6])
    assert chart.slot == pytest.approx(100 / 3)


def test_a_line_leaves_out_what_has_no_number() -> None:
    series = [Series("median", [1.0, None, 3.0]), Series("95th percentile", [None] * 3)]
    chart = lines(["a", "b", "c"], series, title="Hours", unit=" h")
    assert chart is not None
    assert chart.label == "Hours. median: at most 3 h, 3 h at c; 95th percentile: no number."
    assert [len(points) for points in chart.series] == [2, 0]
    assert chart.slot is None


def test_there_is_no_chart_without_numbers() -> None:
    assert bars([], title="x") is None
    assert bars([("a", 0.0)], title="x") is None
    assert lines([], [Series("", [])], title="x") is None
    assert lines(["a"], [Series("", [None])], title="x") is None
    assert lines(["a"], [Series("", [0.0])], title="x") is not None


@pytest.mark.parametrize(("count", "length"), [(1, 5), (3, 16), (6, 16), (12, 6), (26, 100)])
def test_no_name_is_over_another_on_a_telephone(count: int, length: int) -> None:
    chart = bars([("n" * length, 1.0)] * count, title="x")
    assert chart is not None
    assert 1 <= len(chart.names) <= 6
    assert all(len(name) <= 16 for _, name, _ in chart.names)
    shown = [(2.3 * x, 6.5 * len(name)) for x, name, everywhere in chart.names if everywhere]
    assert shown
    assert all(b - a >= wide for (a, wide), (b, _) in pairwise(shown))
