"""Random lives of every exact mechanism, computed again at their end by other processes.

Where a service runs, and for what was trained with a seed also where there is none, from a kit.
"""

import contextlib
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import ConflictError
from app.domain.states import Forgetting
from app.ledger.models import retraining
from tests.integration.workers.test_exact_histories import FEATURES, History
from tests.support.exact_heads import head_of
from tests.support.logbook import faults
from workers.recompute import write_kit

STEPS = 12
MLP = ArchitectureSpec("mlp", {"hidden": [4]})
ENSEMBLE = ArchitectureSpec("ensemble", members=4, of=MLP)
BRIEFLY = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1, "held_out_fraction": 0.2}
LEFT_OUT = {"refill_after_s": None, "refill_at": None}
SEEDED = {
    "network": (MLP, BRIEFLY, {"mechanism": "retraining"}),
    "left-out": (ENSEMBLE, BRIEFLY, LEFT_OUT),
    "anew": (ENSEMBLE, BRIEFLY, {"forget": Forgetting.RETRAIN}),
}
KINDS = {
    kind: each for kind, each in History.kinds.items() if kind in ("ridge", "softmax", "trees")
} | SEEDED

RECOMPUTE = """
import sys
from workers.__main__ import prepare_environment
prepare_environment()
from workers.recompute import main
for name in sys.argv[1:]:
    sys.argv[1:] = ["recompute", name]
    main()
"""
FROM_KITS = """
import sys
from expunge.recompute import main
kits = sys.argv[1:]
for kit in kits:
    sys.argv[1:] = [kit, kit + ".parquet"]
    try:
        main()
    except SystemExit as done:
        if done.code:
            raise
"""


class Life(History):
    """A model of one kind, whose dataset and requests go on at random."""

    kinds = KINDS
    features = FEATURES.clip(-9, 9)

    def __init__(self, workshop, number):
        super().__init__(workshop, f"life-{number}")
        self.random = random.Random(number)
        self.kind = list(KINDS)[number % len(KINDS)]
        self.push_more(25)
        self.name = self.define(self.kind)

    def live(self):
        steps = [self.more, self.forget_some, self.forget_some, self.push_again, self.take_back]
        steps += [self.answer, self.answer, self.train, self.refill]
        for step in self.random.choices(steps, k=STEPS):
            step()
        self.forget([self.pushed - 1])
        self.answer()

    def more(self):
        self.push_more(self.random.randrange(1, 8))

    def forget_some(self):
        self.forget(self.random.sample(range(self.pushed), self.random.choice([1, 1, 2, 4])))

    def push_again(self):
        if self.forgotten:
            self.push(self.random.sample(sorted(self.forgotten), 1))

    def take_back(self):
        self.cancel(self.random.random() < 0.5)

    def train(self):
        self.retrain(self.kind)

    def refill(self):
        with contextlib.suppress(ConflictError):  # no member is out, or it is no ensemble
            retraining.refill(self.services.database, self.name)
            self.work(self.name)


def of_another_process(script, *arguments, **environment):
    """Run a script in a process tree of its own; return the JSON that it prints."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment |= {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    decoder, found, text = json.JSONDecoder(), [], done.stdout.strip()
    while text:
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:].lstrip()
    return found


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(range(6), marks=pytest.mark.slow),
        *(
            pytest.param(range(first, first + 10), marks=pytest.mark.nightly)
            for first in range(6, 106, 10)
        ),
    ],
    ids=lambda numbers: f"{numbers[0]}-{numbers[-1]}",
)
def test_at_the_end_of_any_life_other_processes_compute_its_version(workshop, tmp_path, numbers):
    lives = {}
    for number in numbers:
        life = Life(workshop, number)
        life.live()
        if head_of(workshop, life.name) is not None:
            lives[life.name] = life
    service = {name: each for name, each in os.environ.items() if name.startswith("EXPUNGE_")}
    found = of_another_process(RECOMPUTE, *lives, **service)
    assert len(found) == len(lives) > len(numbers) / 2
    for (name, life), each in zip(lives.items(), found, strict=True):
        assert each["equal"], (name, each)
        known, head = len(life.left(name)), head_of(workshop, name)
        assert each["released"] == head.sha256
        whole = not any("out_since" in member for member in head.members or ())
        held_out = life.kind in SEEDED
        assert each["records"] <= known if held_out or not whole else each["records"] == known
    kits = []
    for name, life in lives.items():
        if life.kind in SEEDED:
            kits.append(tmp_path / name)
            write_kit(workshop.services, name, kits[-1])
            order = np.random.default_rng(1).permutation(life.left(name))  # no forgotten one
            kits[-1].with_name(f"{name}.parquet").write_bytes(life.parquet(order))
    found = of_another_process(FROM_KITS, *kits)
    assert len(found) == len(kits) > 0
    assert all(each["equal"] for each in found), found
    assert [each["released"] for each in found] == [
        head_of(workshop, kit.name).sha256 for kit in kits
    ]
    assert faults(workshop.services) == []
