"""What is done between a request and its arithmetic, in calls: nothing for each record."""

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from app.domain.architectures import ArchitectureSpec
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import define_dataset
from app.runtime.processes.stopping import StopSignal
from app.services import Services
from demo.tables import record_table
from tests.support.arrays import array_schema, array_task
from tests.support.workshop import Workshop
from workers import run as run_module
from workers.leases.lease import Lease

FIRST, FEW, MANY = 900, 1000, 100_000
"""The first is to load what is loaded once."""
WIDTH = 4
RECIPE = {"epochs": 1, "batch_size": 4096, "held_out_fraction": 0.1}
MLP = ArchitectureSpec("mlp", {"hidden": [3]})
MODELS = {
    "retraining": MLP,
    "sharded_retraining": ArchitectureSpec("ensemble", members=16, of=MLP),
    "exact_training": ArchitectureSpec("linear_head"),
    "noisy_gd_convex": ArchitectureSpec("linear_head"),
    "sufficient_statistics": ArchitectureSpec("ridge_head", {"feature_range": 4.0}),
}


def _push(services: Services, name: str, count: int) -> None:
    with services.database.transaction() as session:
        define_dataset(session, name=name, schema=array_schema(WIDTH))
    numbers = np.arange(count)
    table = record_table(
        record_ids=np.char.add("record-", numbers.astype(str)),
        subject_ids=np.char.add("person-", (numbers // 2).astype(str)),
        labels=numbers % 2,
        features=np.random.default_rng(0).random((count, WIDTH), dtype=np.float32),
    )
    services.records.push(name, to_parquet(table))


def _calls(work: Callable[[], object]) -> int:
    """Do it; return the calls of Python and of C, until it ends or stops the profile."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def _calls_of_run(workshop: Workshop, name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Carry the model's run out; return the calls up to its arithmetic."""
    carry_out = run_module._carry_out

    def uncounted(run: run_module._Run) -> None:
        sys.setprofile(None)
        carry_out(run)

    run_id = workshop.active_run(name)
    assert run_id is not None
    lease = Lease.take(workshop.services.database, run_id, lease_s=600.0, stop=StopSignal())
    assert lease is not None
    with monkeypatch.context() as patch, lease:
        patch.setattr(run_module, "_carry_out", uncounted)
        return _calls(lambda: run_module.execute(workshop.services, lease))


@pytest.mark.slow
def test_no_record_costs_a_call(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(services)
    counts: dict[tuple[str, str, int], int] = {}
    for size in (FIRST, FEW, MANY):
        dataset = f"data-{size}"
        _push(services, dataset, size)
        for mechanism, architecture in MODELS.items():
            recipe = {} if architecture.name == "ridge_head" else RECIPE
            workshop.define(
                f"{mechanism}-{size}",
                dataset=dataset,
                architecture=architecture,
                recipe=recipe,
                task=array_task(WIDTH),
                mechanism=mechanism,
            )
            first = _calls_of_run(workshop, f"{mechanism}-{size}", monkeypatch)
            counts["training", mechanism, size] = first
        ask = partial(workshop.forget, subjects=["person-3"], dataset=dataset)
        counts["accepting", "all", size] = _calls(ask)
        counts["dispatching", "all", size] = _calls(workshop.dispatch)
        for mechanism in MODELS:
            if workshop.active_run(f"{mechanism}-{size}") is not None:  # else it held her out
                again = _calls_of_run(workshop, f"{mechanism}-{size}", monkeypatch)
                counts["forgetting", mechanism, size] = again
        counts["erasing", "all", size] = _calls(services.clean_up)
    each = {
        (kind, mechanism): (calls - counts[kind, mechanism, FEW]) / (MANY - FEW)
        for (kind, mechanism, size), calls in counts.items()
        if size == MANY and (kind, mechanism, FEW) in counts
    }
    assert len(each) >= len(MODELS) + 3
    assert {what: calls for what, calls in each.items() if calls > 0.05} == {}
