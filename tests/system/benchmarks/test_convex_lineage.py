"""Lineages of linear heads on small digits: planned, run, certified and counted."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.accounting.histories.history import Release, Steps
from app.accounting.histories.history_account import HistoryAccountant
from app.accounting.terms import Neighbours
from app.planning.mechanisms.tracked_release import TrackedRelease
from benchmarks import chien_figures
from benchmarks.convex import Case, Lineage, Plan, two_digits
from benchmarks.convex_runs import Method, Outcome, Target, Trainings, answer, tracked
from benchmarks.data import load
from workers.mechanisms.descent import Descent

REQUESTS = 4
BATCH = 32


@pytest.fixture(scope="module")
def case() -> Case:
    torch.set_num_threads(1)
    return two_digits(load("digits"))


@pytest.fixture(scope="module")
def trainings(case: Case) -> Trainings:
    return Trainings(case, seed=0, epochs=3, full_batch_steps=5)


def outcome(case: Case, trainings: Trainings, method: Method, epsilon: float = 1.0) -> Outcome:
    target = Target(epsilon, case.delta)
    start = trainings.start(method, target)
    return answer(case, method, target, start, requests=REQUESTS, records=1, seed=0)


def lineage(case: Case) -> Lineage:
    recipe = case.recipe(batch_size=BATCH, neighbours=Neighbours.ZERO_OUT)
    descent = Descent(recipe.learning_rate, recipe.weight_decay)
    made = Lineage(case, recipe, descent, seed=1)
    made.train(2 * recipe.batches)
    return made


def test_a_request_is_counted_where_its_records_were(case: Case) -> None:
    made = lineage(case)
    before = made.history.steps
    made.forget(3)
    assert made.history.forgotten() == 3
    made.run(plan := _released(made, steps=7, noise_std=5.0), epsilon=8.0)
    assert made.history.steps == before + 7
    assert made.history.last_run == (Steps(7), Release(5.0))
    assert made.gradients == 7 * BATCH
    assert plan.account(7).mu < plan.account(0).mu


def test_replacement_costs_more_than_zero_out(case: Case, trainings: Trainings) -> None:
    method = Method("ours", BATCH, tracked(0.05))
    doubled = replace(method, neighbours=Neighbours.REPLACEMENT)
    cost = outcome(case, trainings, method).gradients
    assert 0 < cost < outcome(case, trainings, doubled).gradients


def test_skipped_requests_are_counted_all_the_same(case: Case, trainings: Trainings) -> None:
    method = Method("ours", BATCH, tracked(0.05))
    full = outcome(case, trainings, method)
    last = outcome(case, trainings, replace(method, simulated_last=1))
    assert last.steps == full.steps
    assert last.gradients == full.gradients
    assert (len(full.accuracies), len(last.accuracies)) == (REQUESTS, 1)


def test_the_papers_figure_is_run_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in {
        "REQUESTS": 20,
        "EPSILONS": (0.5, 2.0),
        "NOISE_SCALES": (0.1,),
        "BATCHES": (1, 32, 512, 0),
    }.items():
        monkeypatch.setattr(chien_figures, name, few)
    results = tmp_path / "figures.json"
    how = {"case": ["digits"], "seeds": 1, "cache": tmp_path, "results": results}
    *_, one = chien_figures.run(Namespace(**how, part=["one_request"]))
    results.write_text(json.dumps(one))
    others = [part for part in chien_figures.PARTS if part != "one_request"]
    *_, document = chien_figures.run(Namespace(**how, part=others))
    (found,) = document["cases"]
    spent = {(row["method"], row["neighbours"]): row["epochs"] for row in found["in_a_row"]}
    assert len(spent) == len(found["in_a_row"]) == 13
    together = [spent[f"Langevin unlearning, {size} together", "replacement"] for size in (5, 10)]
    assert together == sorted(together, reverse=True)
    doubled = [spent["tracked release, b = 32", each] for each in ("zero_out", "replacement")]
    assert 0 < doubled[0] < doubled[1]
    one = {(row["method"], row["epsilon"]): row["noise"] for row in found["one_request"]}
    assert len({name for name, _ in one}) == 6
    assert all(one[name, 2.0] < one[name, 0.5] for name, _ in one)
    rows = found["by_batch_and_noise"]
    assert [row["batch_size"] for row in rows] == [1, 32, found["records"]]
    assert all(row["epochs_ours"] <= row["epochs_published"] for row in rows)
    assert chien_figures.figure(document, tmp_path / "plot.png").stat().st_size > 0


def _released(made: Lineage, *, steps: int, noise_std: float = 0.05) -> Plan:
    accountant = HistoryAccountant(made.history, TrackedRelease.terms)
    return Plan(
        steps=steps,
        release_noise_std=noise_std,
        account=lambda taken: accountant.guarantee(steps=taken, release_noise_std=noise_std),
    )
