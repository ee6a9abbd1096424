"""What a worker has imported before it forks: what most runs need, without touching CUDA."""

import json
import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.workshop import Workshop

# Names are compared before and after runs of a process that is what a worker is when it forks.
_PROGRAM = """
import gc, json, sys
from pathlib import Path
import torch
from workers import jobs
from workers import worker

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

threads_before = threads()
worker.preload()
cuda = torch.cuda.is_initialized()
started = threads() - threads_before
collected = len(gc.get_objects())  # what each collection in a run passes over
before = set(sys.modules)
for run in sys.argv[1:]:
    jobs.execute_run(run)
late = sorted(set(sys.modules) - before)
print(json.dumps({"cuda": cuda, "started": started, "late": late, "collected": collected}))
"""
POLICIES = {
    "descent": {},
    "private": {"mechanism": "dp_sgd"},
    "again": {"mechanism": "retraining"},
    "openly": {"mechanism": "retraining", "first_release": "as_trained"},
}


@pytest.fixture
def carry_out():
    def run(*run_ids):
        program = [sys.executable, "-c", _PROGRAM, *run_ids]
        answer = subprocess.run(
            program, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        )
        return json.loads(answer.stdout)

    return run


@pytest.mark.slow
def test_a_run_imports_nothing_and_nothing_before_it_touches_cuda(services, carry_out):
    workshop = Workshop(services)
    for name, policy in POLICIES.items():
        workshop.define(name, **policy)
    unlearning = [name for name in POLICIES if name != "private"]  # whose release covers all
    told = carry_out(*map(workshop.active_run, unlearning))
    assert told["late"] == []
    private = carry_out(workshop.active_run("private"))
    assert "dp_accounting" in private["late"]  # a second, which only these runs take
    assert {run.state for run in workshop.runs()} == {"published"}
    assert told["cuda"] is private["cuda"] is False
    assert told["collected"] < 1000
    assert told["started"] == 0  # a fork would not take them along

    learned = set.intersection(*(set(workshop.split(name)[0]) for name in unlearning))
    workshop.forget(*sorted(learned)[:3])
    workshop.dispatch()
    told = carry_out(*filter(None, [workshop.active_run(name) for name in POLICIES]))
    assert [run.kind for run in workshop.runs()].count("unlearn") == len(unlearning)
    assert {run.state for run in workshop.runs()} == {"published"}
    assert told["late"] == []
