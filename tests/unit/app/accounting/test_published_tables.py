import pytest

from benchmarks import published_tables
from benchmarks.published_tables import compute


@pytest.fixture(scope="module")
def tables():
    return compute()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "table", "count"),
    [
        ("koloskova", "gradient_clipping", 139),
        ("koloskova", "model_clipping", 27),
        ("koloskova", "output_perturbation", 27),
        ("chien", "requests", 18),
        ("chien", "one_epoch", 24),
    ],
)
def test_every_published_row_is_reproduced_with_the_authors_bound(tables, paper, table, count):
    rows = tables[paper][table]
    assert sum(row.get("rows", 1) for row in rows) == count
    assert [row for row in rows if not row["reproduced"]] == []


@pytest.mark.slow
def test_the_table_ends_with_the_number_of_rows_and_of_disagreements(tables):
    assert published_tables.table(tables).endswith("| all | 235 | 0 |")
    [changed, *others] = tables["koloskova"]["gradient_clipping"]
    wrong = [{**changed, "reproduced": False}, *others]
    wrong = {**tables, "koloskova": {**tables["koloskova"], "gradient_clipping": wrong}}
    assert published_tables.table(wrong).endswith(f"| all | 235 | {changed['rows']} |")
    assert published_tables.met(tables)
    assert not published_tables.met(wrong)


@pytest.mark.slow
def test_noise_of_the_classical_formula_and_of_the_recursion_is_enough(tables):
    for name in ("model_clipping", "output_perturbation"):
        assert all(0.7 < row["true_epsilon"] < 1 for row in tables["koloskova"][name])


@pytest.mark.slow
def test_published_noise_is_enough_after_more_steps_where_they_contract(tables):
    rows = {
        (row["C0"], row["C1"], row["lam"], row["T"]): row["steps_that_meet_target"]
        for row in tables["koloskova"]["gradient_clipping"]
        if row["epsilon"] == 1
    }
    assert rows[(1, 10, 50, 5)] == 37
    assert rows[(20, 10, 50, 11)] == 44
    assert rows[(0.01, 100, 10, 1)] is None
    assert all(steps is None or steps > T for (*_, T), steps in rows.items())


@pytest.mark.slow
def test_ours_beats_every_sequential_row(tables):
    for row in tables["chien"]["requests"]:
        assert row["our_epochs_replacement"] < row["total_epochs"]
        assert row["our_epochs_zero_out"] < row["our_epochs_replacement"]


@pytest.mark.slow
def test_ours_needs_less_noise_for_one_epoch(tables):
    for row in tables["chien"]["one_epoch"]:
        assert row["our_sigma"] < row["sigma"]
        assert row["true_epsilon"] < row["epsilon"] / 10
