"""The page of results shows what the results say, in tables and in words."""

import importlib
import json
import re
from functools import cache

import pytest

from benchmarks import convex_runs, harness

PAGE = harness.PAGE.read_text()
# What the page names in words or shows in a picture, or a test compares with the code.
WITHOUT_TABLE = {
    "audits",
    "head_costs",
    "leaving_out",
    "multiclass_head",
    "noise_throughput",
    "published_tables",
    "scale",
    "sequential_convex",
    "step_overhead",
    "unlearning_vs_retraining",
}
NAMES = sorted(path.stem for path in harness.RESULTS.glob("*.json"))
NO_PROSE = re.compile(r"<!-- figures of.*?end -->|`[^`]*`|!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)", re.S)


@cache
def result(name):
    return json.loads((harness.RESULTS / f"{name}.json").read_text())


def one(rows, **wanted):
    [row] = [row for row in rows if wanted.items() <= row.items()]
    return row


def head(**wanted):
    rows = result("exact_heads")["rows"]
    return one(rows, **{"features": "and averages of four blocks", **wanted})


def lost(case, members=8):
    rows = result("ensembles")[case]["rows"]
    most = one(rows, members=1)["accuracy"]
    return 100 * (most - one(rows, members=members)["accuracy"])


def published_over(method, neighbours):
    rows = [row for row in result("sequential_convex")["rows"] if row["epsilon"] == 1]
    published = one(rows, method="projected noisy SGD, σ = 0.03", source="published")
    ours = one(rows, method=method, neighbours=neighbours, source="ours")
    return published["gradients"] / ours["gradients"]


def epoch_over_tracked(case):
    rows = one(result("multiclass_head")["cases"], case=case)["rows"]
    tracked = one(rows, method="tracked release", neighbours="zero_out", epsilon=1, batch_size=32)
    return one(rows, method="retraining, 1 epoch", epsilon=1)["gradients"] / tracked["gradients"]


def ten_epochs():
    return one(
        result("unlearning_vs_retraining")["cifar10"]["gradient_clipping_against_retraining"],
        budget_epochs=10,
    )


HASHED = "hashed_in_each_run"


def half_a_million(case, rows="cases"):
    return one(result("scale")[rows], case=case, records=500_000)


def growth(case, rows="cases"):
    least = one(result("scale")[rows], case=case, records=50_000)
    return half_a_million(case, rows)["rest_s"] / least["rest_s"]


def year(way, key="of_singly"):
    """Return what a way of leaving out has, over all ensembles."""
    return [
        row[key]
        for case in result("leaving_out").values()
        for row in case["rows"]
        if row["way"] == way
    ]


def lost_in_a_year(key):
    whole, left_out = year("one member each", key), year("left out, refilled at 1/2", key)
    return 100 * max(one - other for one, other in zip(whole, left_out, strict=True))


def lost_against_one(case):
    found = result("leaving_out")[case]
    row = one(found["rows"], members=16, way="left out, refilled at 1/2")
    return 100 * (found["single"] - row["worst"])


def compute_of_a_year(part):
    shares = [round(100 * share) for share in year(f"left out, refilled at {part}")]
    return f"{min(shares)} to {max(shares)} %"


CLAIMS = {
    "at a quarter out compute {} of": lambda: compute_of_a_year("1/4"),
    "at half {}": lambda: compute_of_a_year("1/2"),
    "at seven eighths {}": lambda: compute_of_a_year("7/8"),
    "loses at most {:.1f} points": lambda: lost_in_a_year("score"),
    "in the mean and {:.1f} on the worst day": lambda: lost_in_a_year("worst"),
    "then lose {:.1f} points on MNIST's public weights": lambda: lost_against_one("public"),
    "public weights, {:.1f} for customers": lambda: lost_against_one("customers"),
    "customers and {:.1f} on MNIST from scratch": lambda: lost_against_one("scratch"),
    "contradicted in 100 of 100 (ε ≥ {:.2f})": lambda: result("audits")["worst_case"][2][
        "epsilon_lower_bound"
    ],
    "for honest noise is ε ≥ {:.2f}": lambda: result("audits")["worst_case"][0][
        "epsilon_lower_bound"
    ],
    "a ridge head tells {:.1f} % of": lambda: 100 * head(head="ridge", forgotten=0)["accuracy"],
    "records in {:.1f} s": lambda: head(head="ridge", forgotten=100, requests=1)["seconds"],
    "a softmax head {:.1f} %, in": lambda: 100 * head(head="softmax", forgotten=100)["accuracy"],
    "%, in {:.0f} s on two": lambda: head(head="softmax", forgotten=100)["seconds"],
    "takes 85 passes and reaches {:.1f} %": lambda: (
        100 * head(head="softmax", gradients=4_250_000)["accuracy"]
    ),
    "shorter training gives up {:.1f} points": lambda: (
        100
        * (
            head(head="softmax", gradients=4_250_000)["accuracy"]
            - head(head="softmax", forgotten=0, gradients=1_000_000)["accuracy"]
        )
    ),
    "{:.0f} times fewer gradients than the published": lambda: published_over(
        "tracked release, b = 32", "zero_out"
    ),
    "noisy SGD needs {:.0f} times fewer": lambda: published_over(
        "projected noisy SGD, σ = 0.007", "replacement"
    ),
    "a factor of {:.1f} and": lambda: epoch_over_tracked("raw pixels"),
    "and {:.0f}. But": lambda: epoch_over_tracked("backbone"),
    "{:.2f} ± 0": lambda: -100 * ten_epochs()["difference"],
    "± {:.2f} points": lambda: 100 * ten_epochs()["standard_error"],
    "{:.1f} points less accurate on MNIST": lambda: lost("scratch"),
    "{:.1f} points for customers": lambda: lost("churn"),
    "{:.1f} on MNIST from scratch": lambda: lost("scratch"),
    "{:.1f} on CIFAR-10": lambda: lost("pictures"),
    "{:.1f} on texts": lambda: lost("texts"),
    "four members lose {:.1f} points": lambda: lost("pictures", 4),
    "{:.0f} million numbers": lambda: (
        max(result("noise_throughput")["numbers_per_second"].values()) / 1e6
    ),
    "{:.1f} times as many": lambda: result("noise_throughput")["ratio"],
    "at {:.2f} of the speed": lambda: result("streaming")["training_s_speed"],
    "run at {:.2f}, and": lambda: result("streaming")["run_s_speed"],
    "at {:.2f} by processor": lambda: result("streaming")["cpu_s_speed"],
    "up to {:.0f} MB above": lambda: result("streaming")["above_allowance_mb"],
    "it takes {:.0f} MB": lambda: result("streaming")["idle_bytes"] / 1e6,
    "answers {:.1f} s after": lambda: result("api_load")["start_to_first_answer_s"],
    "product ΦᵀΦ of all features takes {:.1f} s": lambda: result("exact_heads")["product_s"],
    "a head {:,.0f}.": lambda: one(
        result("step_overhead")["rows"], mechanism="tracked_release", noise="secure"
    )["parameters"],
    "arithmetic is {:.1f} times as much for the ridge": lambda: growth("ridge"),
    "{:.1f} times as much for the network": lambda: growth("mlp"),
    "{:.1f} times where a member is left out": lambda: growth("left_out"),
    "it is {:.1f} times as much for the ridge head": lambda: growth("ridge", HASHED),
    "takes {:.1f} s until completion": lambda: half_a_million("ridge", HASHED)["completed_s"],
    "trained anew {:.1f} s, under": lambda: half_a_million("retrained", HASHED)["completed_s"],
    "of accepting by {:.0f} %": lambda: (
        100 - 100 * result("api_load")["filled_over_empty"]["accept"]
    ),
    "standard error is {:.1f} points;\n": lambda: chance("texts"),
    "standard error is {:.1f} points. What": lambda: chance("pictures"),
}
STATED = {
    "an aim": {"0.8", "300", "1.05"},
    "the set-up": {"2 × 2"},
    "other papers": {"Koloskova et al. 2025", "4.6 ×", "2.5 ×", "16.7 to 19.5 points"},
    "a licence": {"Apache-2.0"},
}
"""Of these there is no result."""


def chance(case):
    part = result("ensembles")[case]
    accuracy = one(part["rows"], members=4)["accuracy"]
    return 100 * (accuracy * (1 - accuracy) / part["tested"]) ** 0.5


def prose(page):
    return re.sub(r"\s+", " ", NO_PROSE.sub("", page))


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_the_page_says_in_words_follows_from_the_results(claim):
    said = " ".join(claim.format(CLAIMS[claim]()).split())
    assert said in prose(PAGE), said


def test_no_decimal_in_words_without_a_result_or_a_reason():
    text = prose(PAGE)
    for phrase in (claim.format(CLAIMS[claim]()) for claim in CLAIMS):
        text = text.replace(" ".join(phrase.split()), "")
    for phrase in set().union(*STATED.values()):
        text = text.replace(phrase, "")
    assert re.findall(r"(?<![\w.])\d+\.\d+", text) == []


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_TABLE))
def test_the_page_has_the_table_of_each_result(name):
    begin, end = harness.marks(name)
    shown = PAGE.partition(begin)[2].partition(end)[0]
    module = importlib.import_module(f"benchmarks.{name}")
    assert shown == getattr(module, "table", convex_runs.table)(result(name))


@pytest.mark.parametrize("name", NAMES)
def test_each_result_has_its_command_on_the_page(name):
    assert f"benchmarks.{name}" in PAGE or name == "published_tables"


def test_the_page_of_results_can_be_read_at_once():
    assert len(PAGE.split()) <= 3_000


def test_a_table_is_put_between_its_marks_alone(tmp_path):
    page = tmp_path / "results.md"
    begin, end = harness.marks("speed")
    page.write_text(f"before\n\n{begin}old{end}\n\nafter\n")
    harness.put_on_page("speed", "new", page)
    harness.put_on_page("other", "lost", page)
    assert page.read_text() == f"before\n\n{begin}new{end}\n\nafter\n"
