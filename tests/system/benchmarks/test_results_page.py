"""The page of results shows what the results say."""

import importlib
import json

import pytest

from benchmarks import convex_runs, harness

PAGE = harness.PAGE.read_text()
# What the page names in words, or a test compares with the code.
WITHOUT_TABLE = {"head_costs", "noise_throughput", "published_tables"}
NAMES = sorted(path.stem for path in harness.RESULTS.glob("*.json"))


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_TABLE))
def test_the_page_has_the_table_of_each_result(name):
    document = json.loads((harness.RESULTS / f"{name}.json").read_text())
    begin, end = harness.marks(name)
    shown = PAGE.partition(begin)[2].partition(end)[0]
    module = importlib.import_module(f"benchmarks.{name}")
    assert shown == getattr(module, "table", convex_runs.table)(document)


@pytest.mark.parametrize("name", NAMES)
def test_each_result_has_its_command_on_the_page(name):
    assert f"benchmarks.{name}" in PAGE or name == "published_tables"


def test_a_table_is_put_between_its_marks_alone(tmp_path):
    page = tmp_path / "results.md"
    begin, end = harness.marks("speed")
    page.write_text(f"before\n\n{begin}old{end}\n\nafter\n")
    harness.put_on_page("speed", "new", page)
    harness.put_on_page("other", "lost", page)
    assert page.read_text() == f"before\n\n{begin}new{end}\n\nafter\n"
