"""The page of results shows what the results say, in tables and in words."""

import importlib
import json
import math
import re
from functools import cache

import numpy as np
import pytest
from scipy.stats import beta

from benchmarks import harness
from benchmarks import unlearning_vs_retraining as comparison

PAGE = "\n".join(page.read_text() for page in harness.PAGES)
# What the page names in words or shows in a picture, or a test compares with the code.
WITHOUT_TABLE = {
    "audits",
    "chien_figures",
    "head_costs",
    "published_tables",
    "step_overhead",
}
NAMES = sorted(path.stem for path in harness.RESULTS.glob("*.json"))
UNITS = "%|points?|times|m?s|million|MB|[MG]iB|kB"
NUMBER = re.compile(rf"(?<![\w.,])(?:\d+\.\d+|\d[\d,]*(?= (?:{UNITS})(?!\w))(?: \S+))")
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


def chien(case, part, **wanted):
    return one(result("chien_figures")["cases"][case][part], **wanted)


def published_over(method, neighbours, case=0):
    first = chien(case, "in_a_row", method="projected noisy SGD, b = 128")
    return first["epochs"] / chien(case, "in_a_row", method=method, neighbours=neighbours)["epochs"]


def rivals_share(batch):
    """Return what projected noisy SGD needs of its rivals' epochs, in percent."""
    shares = [
        100
        * chien(case, "in_a_row", method=f"projected noisy SGD, b = {batch}")["epochs"]
        / chien(case, "in_a_row", method=rival)["epochs"]
        for case in (0, 1)
        for rival in ("Delete-to-Descent", "Langevin unlearning, 10 together")
    ]
    return f"{min(shares):.1f} to {max(shares):.1f} %"


def ahead_at_once(case):
    """Return how far tracked release is above the paper's ways at the smallest epsilon."""
    rows = result("chien_figures")["cases"][case]["one_request"]
    rows = [row for row in rows if row["epsilon"] == 0.05]
    ours = one(rows, method="tracked release, b = 128, ours")["accuracy"]
    return 100 * (ours - max(row["accuracy"] for row in rows if "ours" not in row["method"]))


def by_noise(case):
    """Return the rows by batch and noise at the paper's noises."""
    rows = result("chien_figures")["cases"][case]["by_batch_and_noise"]
    return [row for row in rows if row["noise_scale"] >= 0.05]


def full_batch(case):
    records = result("chien_figures")["cases"][case]["records"]
    rows = [row for row in by_noise(case) if row["batch_size"] == records]
    return f"{rows[0]['epochs_published']:,} to {rows[-1]['epochs_published']:,}"


def best_of_batches(case):
    assert min(row["epochs"] for row in by_noise(case)) == 100
    return 100 * max(row["accuracy"] for row in by_noise(case))


def retrained(case):
    return 100 * chien(case, "in_a_row", method="retraining, 1 epoch", epochs=100.0)["accuracy"]


def of_start(start):
    """Return what three epochs of retraining reach from a start."""
    known = {"budget_epochs": 3, "start": start, "method": "retraining", "control": False}
    return one(result("unlearning_vs_retraining")["mnist, 5,000 pictures"]["rows"], **known)["mean"]


def ten_epochs():
    """Return how far gradient clipping is above retraining on CIFAR-10, and the standard error."""
    rows = result("unlearning_vs_retraining")["cifar10, 50,000 pictures"]["rows"]
    known = {"budget_epochs": 10, "start": "own", "control": False}
    ours, theirs = (
        one(rows, **known, method=method) for method in ("gradient_clipping", "retraining")
    )
    error = math.hypot(ours["standard_error"], theirs["standard_error"])
    return ours["mean"] - theirs["mean"], error


def figure_2():
    """Return what one core measured of CIFAR-10."""
    return result("unlearning_vs_retraining")["cifar10 at 16 pixels, 10,000 pictures"]


def after_noise():
    rows = figure_2()["rows"]
    return next(row for row in rows if row["method"] == comparison.AS_PUBLISHED)


def at_budget(method, budget=8, *, start="own", control=False):
    """Return a point of a curve of Figures 1 and 2."""
    known = {"budget_epochs": budget, "start": start, "method": method, "control": control}
    return one(figure_2()["rows"], **known)


def ends_at(method, *, control=False):
    return comparison.cell(at_budget(method, control=control))


def above_random_starts(methods=comparison.METHODS):
    """Return how far mechanisms end above their random starts, in points, and its error."""
    gains = [
        np.subtract(*(at_budget(each, control=it)["accuracies"] for it in (False, True)))
        for each in methods
    ]
    return harness.mean_and_error(100 * np.mean(gains, axis=0))


def side():
    return "above" if above_random_starts()[0] > 0 else "below"


def none_sooner(accuracy):
    """Say whether no mechanism is at an accuracy more than an error sooner than retraining is."""
    shown = []
    for method in ("retraining", *comparison.METHODS):
        rows = [
            row for row in figure_2()["rows"] if (row["method"], row["start"]) == (method, "own")
        ]
        curve = [row for row in rows if not row["control"]]
        shown.append([*map(float, comparison.epochs_to(accuracy, curve).split(" ± "))])
    (retraining, error), *others = shown
    return min(mean for mean, _ in others) >= retraining - error


def of_larger_start(budget):
    """Return what a start four times as large is worth to retraining, in points."""
    larger, own = (at_budget("retraining", budget, start=it)["mean"] for it in ("4 times", "own"))
    return 100 * (larger - own)


def noise_a_second():
    """Return what torch.randn adds, and what the service's noise adds."""
    return [*result("step_overhead")["noise_numbers_a_second"].values()]


def growth(case):
    least, more = (one(result("scale")["cases"], case=case, records=n) for n in (50_000, 500_000))
    return more["rest_s"] / least["rest_s"]


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


def lost_with_a_quarter_out(case):
    found = result("leaving_out")[case]
    row = one(found["rows"], members=16, way="one member each")
    return 100 * (found["single"] - row["quarter_out"])


def compute_of_a_year(part):
    shares = [round(100 * share) for share in year(f"left out, refilled at {part}")]
    return f"{min(shares)} to {max(shares)} %"


CLAIMS = {
    "at a quarter out compute {} of": lambda: compute_of_a_year("1/4"),
    "at half {}": lambda: compute_of_a_year("1/2"),
    "at seven eighths {}": lambda: compute_of_a_year("7/8"),
    "loses at most {:.1f} points": lambda: lost_in_a_year("score"),
    "in the mean and {:.1f} on the worst day": lambda: lost_in_a_year("worst"),
    "lose {:.1f} points on MNIST's public": lambda: abs(lost_with_a_quarter_out("public")),
    "and {:.1f} with a head on": lambda: lost_with_a_quarter_out("head"),
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
    "{:.0f} times fewer gradients than the published": lambda: published_over(
        "tracked release, b = 32", "zero_out"
    ),
    "at 0.05 it is {:.1f} points above": lambda: ahead_at_once(0),
    "on MNIST and {:.1f} on CIFAR-10": lambda: ahead_at_once(1),
    "Projected noisy SGD needs {} of": lambda: rivals_share("n"),
    "and {} in batches of 128": lambda: rivals_share("128"),
    "to the last, {} on MNIST": lambda: full_batch(0),
    "on MNIST and {} on CIFAR-10; a better": lambda: full_batch(1),
    "0.05 or more, {:.1f} % on MNIST and": lambda: best_of_batches(0),
    "on MNIST and {:.1f} % on CIFAR-10 is the best": lambda: best_of_batches(1),
    "retraining reaches {:.1f} and": lambda: retrained(0),
    "and {:.1f} in 100": lambda: retrained(1),
    "but give ε = {:.2f}": lambda: result("published_tables")["koloskova"]["gradient_clipping"][0][
        "true_epsilon"
    ],
    "{:.0f} times on CIFAR-10": lambda: published_over("tracked release, b = 32", "zero_out", 1),
    "noisy SGD needs {:.0f} times fewer": lambda: published_over(
        "projected noisy SGD, σ = 0.007", "replacement"
    ),
    "worth {:.0f} points more": lambda: 100 * (of_start("raw 0.01") - of_start("own")),
    "{:.2f} ± 0": lambda: -100 * ten_epochs()[0],
    "± {:.2f} points": lambda: 100 * ten_epochs()[1],
    "are right on {} %": lambda: " and ".join(
        f"{100 * accuracy:.0f}" for accuracy in figure_2()["original_accuracies"]
    ),
    "each of {} repeats": lambda: len(figure_2()["rows"][0]["accuracies"]),
    "The three mechanisms end {}": lambda: "{1:.1f} ± {2:.1f} points {0} their".format(
        side(), *map(abs, above_random_starts())
    ),
    "is worth {:.1f} points to retraining": lambda: of_larger_start(0.5),
    "epoch, and {:.1f} after eight": lambda: of_larger_start(8),
    "falls to {:.0f} % in": lambda: 100 * after_noise()["mean"],
    "and ends at {} % and": lambda: ends_at(comparison.AS_PUBLISHED),
    "retraining ends at {} %": lambda: ends_at("retraining"),
    "% and {} points above its": lambda: "{:.1f} ± {:.1f}".format(
        *above_random_starts([comparison.AS_PUBLISHED])
    ),
    "no mechanism reaches {} % sooner": lambda: 30 if none_sooner(0.3) else "another",
    "truly at ε = {:.1f}": lambda: comparison.FIGURE_2_EPSILON,
    "{:.1f} points less accurate on MNIST": lambda: lost("scratch"),
    "{:.0f} million numbers": lambda: noise_a_second()[1] / 1e6,
    "{:.1f} times as many": lambda: noise_a_second()[1] / noise_a_second()[0],
    "at {:.2f} of the speed": lambda: result("streaming")["training_s_speed"],
    "run at {:.2f}, and": lambda: result("streaming")["run_s_speed"],
    "at {:.2f} by processor": lambda: result("streaming")["cpu_s_speed"],
    "answers {:.1f} s after": lambda: result("api_load")["start_to_first_answer_s"],
    "a head {:,.0f}.": lambda: one(result("step_overhead")["rows"], mechanism="tracked_release")[
        "parameters"
    ],
    "begins {:.2f} s after the POST": lambda: max(
        each["start_s"] for each in result("scale")["cases"]
    ),
    "arithmetic is {:.1f} times as much for the ridge": lambda: growth("ridge"),
    "{:.1f} times for a member trained anew": lambda: growth("retrained"),
    "{:.1f} times for the network": lambda: growth("mlp"),
    "in steps that take {:.0f} times as long": lambda: (
        step_ms("DP-SGD by Opacus, groups of 1") / step_ms("DP-SGD by ours, groups of 1")
    ),
    "Clipping takes {} % more": lambda: to_percent("ratio", clipping=True),
    "secure noise is {} % of a step": lambda: to_percent("noise_share"),
    "at most {:.1f} % are, at 95 %": lambda: 100 * chance_of_contradiction("honest", 0.975),
    "(at least {:.1f} %)": lambda: 100 * chance_of_contradiction("sabotaged", 0.025),
    "standard error is {:.1f} points;\n": lambda: chance("texts"),
    "1,000 others are for testing, so that a standard error is {:.1f} points": lambda: chance(
        "pictures"
    ),
}
STATED = {
    "an aim": {
        "0.5",
        "0.8",
        "1.05",
        "1.5 and at most 2 s are the aims",
        "2 points were the aim",
        "the 2 points of the aim",
        "within 1 % of the best",
        "The aim of 40 %",
        "its aims of 50 ms",
    },
    "a version": {"1.6.0"},
    "the set-up": {
        "2 × 2",
        "forgets 10 % of the records",
        "at 95 %",
        "1 GiB",
        "of 256 MiB",
        "0.5 % of the",
        "batches at ε = 0.01",
    },
    "other papers": {"Koloskova et al. 2025"},
    "a licence": {"Apache-2.0"},
}
"""Of these there is no result."""


def step_ms(method):
    row = one(result("rivals")["network_rows"], method=method)
    return float(row["proved"].split("; ")[1].split(" ms")[0])


def to_percent(key, *, clipping=False):
    """Return the range of a key, in percent, over steps with noise, but for DP-SGD's."""
    others = {"dp_sgd", "opacus", "output_perturbation"}
    rows = [row for row in result("step_overhead")["rows"] if row["mechanism"] not in others]
    found = [row[key] - clipping for row in rows if not clipping or "clipping" in row["mechanism"]]
    return f"{100 * min(found):.0f} to {100 * max(found):.0f}"


def chance_of_contradiction(builds, side):
    """Return one end of the interval that has a build's chance to be contradicted, at 95 %."""
    kinds = result("audits")["builds"][builds].values()
    found = sum(kind["contradicted"] for kind in kinds)
    others = sum(len(kind["right"]) for kind in kinds) - found
    upper = side > 0.5
    return beta.ppf(side, found + upper, others + (not upper))


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


def unexplained(text):
    """Return the decimals, and the whole numbers with a unit, that no claim or reason covers."""
    claims = (claim.format(CLAIMS[claim]()) for claim in CLAIMS)
    known = [" ".join(phrase.split()) for phrase in (*claims, *set().union(*STATED.values()))]
    covered = {
        place
        for phrase in known
        for found in re.finditer(re.escape(phrase), text)
        for place in range(*found.span())
    }
    return [found[0] for found in NUMBER.finditer(text) if found.start() not in covered]


def test_no_figure_in_words_without_a_result_or_a_reason():
    assert unexplained(prose(PAGE)) == []


@pytest.mark.parametrize("figure", ["1.7", "17 %", "1,700 times", "17 points", "17 ms", "7 to 9 %"])
def test_a_figure_that_no_result_has_is_found(figure):
    assert unexplained(f"They take {figure} more.") == [figure.split(" to ")[-1]]


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_TABLE))
def test_the_page_has_the_table_of_each_result(name):
    begin, end = harness.marks(name)
    shown = PAGE.partition(begin)[2].partition(end)[0]
    module = importlib.import_module(f"benchmarks.{name}")
    assert shown == module.table(result(name))


@pytest.mark.parametrize("name", NAMES)
def test_each_result_has_its_command_on_the_page(name):
    assert f"benchmarks.{name}" in PAGE


def test_the_page_of_results_can_be_read_at_once():
    assert len(harness.PAGES[0].read_text().split()) <= 3_000


def test_a_table_is_put_between_its_marks_alone(tmp_path):
    page = tmp_path / "results.md"
    begin, end = harness.marks("speed")
    page.write_text(f"before\n\n{begin}old{end}\n\nafter\n")
    harness.put_on_page("speed", "new", [page])
    harness.put_on_page("other", "lost", [page])
    assert page.read_text() == f"before\n\n{begin}new{end}\n\nafter\n"
