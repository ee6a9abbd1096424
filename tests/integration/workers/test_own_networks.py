"""Runs of the operator's own networks: what their code raises, tokens, and weights they bring."""

import json
import logging
import re
import sys

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn
from torch._subclasses import FakeTensor

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import define_dataset
from demo.tables import record_table
from tests.support.arrays import array_schema, array_task
from tests.support.operators import PACKAGE, operators_package
from workers import jobs
from workers import run as run_module
from workers.seal.sealed import Sealed

SECRET = "4242.25 of alice@example.com"
OWN = ArchitectureSpec("custom", {"width": 3}, f"{PACKAGE}:build")
SOURCE = """
from torch import nn


def build(*, input_shape, classes, width):
    if width % 2:
        raise ValueError(f"width must be even, not {width}")
    return nn.Linear(*input_shape, classes)
"""


@pytest.fixture
def workshop(workshop, monkeypatch):
    monkeypatch.setenv("EXPUNGE_ALLOWED_FACTORIES", json.dumps([f"{PACKAGE}:*"]))
    return workshop


@pytest.fixture
def package(monkeypatch):
    return operators_package(monkeypatch)


@pytest.fixture
def reading(monkeypatch):
    """Note when records are read."""
    events = []
    load = run_module.load_records

    def noting(*args, **kwargs):
        data = load(*args, **kwargs)
        events.append("read")
        return data

    monkeypatch.setattr(run_module, "load_records", noting)
    return events


def carry_out(workshop):
    run_id = workshop.active_run()
    for _ in range(workshop.services.settings.max_attempts):
        jobs.execute_run(run_id)
    return workshop.run(run_id)


def test_a_failing_factory_is_told_in_full_before_a_record_is_read(
    workshop, reading, tmp_path, monkeypatch, caplog
):
    (tmp_path / f"{PACKAGE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    caplog.set_level(logging.INFO)
    workshop.define(architecture=OWN)
    run = carry_out(workshop)
    monkeypatch.delitem(sys.modules, PACKAGE)
    assert (run.state, run.attempt, reading) == ("failed", 1, [])
    assert f"the factory '{PACKAGE}:build' raised ValueError in {PACKAGE}.py, line 7" in (
        run.failure_reason
    )
    for told in (run.failure_reason, caplog.text):
        assert "ValueError: width must be even, not 3" in told
        assert 'raise ValueError(f"width must be even, not {width}")' in told


class Forward(nn.Linear):
    """Fails as soon as there are records, and quotes them."""

    def __init__(self, reading):
        super().__init__(2, 2)
        self.reading = reading

    def forward(self, features):
        if self.reading:
            raise ValueError(SECRET)
        return super().forward(features)


def failing_factory(reading):
    if reading:
        raise ValueError(SECRET)
    return nn.Linear(2, 2)


@pytest.mark.parametrize("build", [failing_factory, Forward])
def test_once_records_are_read_only_the_place_is_told(workshop, package, reading, caplog, build):
    package.build = lambda **_: build(reading)
    workshop.define(architecture=OWN)
    run = carry_out(workshop)
    assert (run.state, reading[:1]) == ("failed", ["read"])
    for told in (run.failure_reason, caplog.text):
        assert "ValueError in test_own_networks.py, line " in told
        assert "alice" not in told
        assert "4242" not in told
    assert "\n" not in run.failure_reason


def test_a_network_that_no_guarantee_covers_reads_no_record(workshop, package, reading):
    package.build = lambda **_: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    workshop.define(architecture=OWN, mechanism="dp_sgd")
    run = carry_out(workshop)
    assert (run.state, reading) == ("failed", [])
    assert "layer '1' (BatchNorm1d) has no gradient per record" in run.failure_reason


SEEN = set()


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(50, 4), nn.Linear(4, 2)

    def forward(self, features):
        if not isinstance(features, FakeTensor):  # the trial's have no values
            SEEN.add((features.dtype, int(features.max())))
        return self.head(self.words(features).mean(dim=1))


@pytest.mark.parametrize(
    ("mechanism", "dtype"),
    [
        pytest.param("dp_sgd", "int64", marks=pytest.mark.nightly),
        ("gradient_clipping", "int32"),
    ],
)
def test_tokens_are_learned_and_forgotten(workshop, package, services, mechanism, dtype):
    schema, task = array_schema(5, dtype), array_task(5, dtype=dtype, vocabulary=50)
    with workshop.transaction() as session:
        define_dataset(session, name="texts", schema=schema)
    words = np.random.default_rng(0).integers(0, 49, (40, 5), dtype=dtype)
    words[0, 0] = 49
    table = record_table(
        record_ids=[f"text-{i}" for i in range(40)], labels=np.arange(40) % 2, features=words
    )
    services.records.push("texts", to_parquet(table))
    SEEN.clear()
    package.build = lambda **_: Text()
    workshop.define(architecture=OWN, dataset="texts", task=task, mechanism=mechanism, epsilon=8.0)
    run = carry_out(workshop)
    assert run.state == "published", run.failure_reason
    assert {kind for kind, _ in SEEN} == {torch.int64}
    assert max(word for _, word in SEEN) == 49
    with pytest.raises(InvalidInputError, match="the dataset holds tokens"):
        workshop.define("other", architecture="logistic", dataset="texts", task=task)


@pytest.mark.parametrize(
    ("spelt", "dtype"),
    [
        pytest.param("{}", np.float32, marks=pytest.mark.nightly),
        ("model.{}", np.float16),
        pytest.param("_orig_mod.{}", float, marks=pytest.mark.nightly),
    ],
)
def test_a_run_starts_from_uploaded_weights(workshop, monkeypatch, spelt, dtype):
    loaded = []
    load = Sealed.load
    monkeypatch.setattr(
        Sealed, "load", lambda self, tensors: (loaded.append(tensors), load(self, tensors))[1]
    )
    tensors = {"1.weight": np.ones((2, 2), dtype), "1.bias": np.zeros(2, dtype)}
    workshop.define(upload=True, mechanism="auto")
    content = safetensors.numpy.save({spelt.format(name): each for name, each in tensors.items()})
    workshop.upload("model", content)
    run = carry_out(workshop)
    assert run.state == "published", run.failure_reason
    assert run.plan["mechanism"] != "retraining"
    assert [set(each) for each in loaded] == [{spelt.format(name) for name in tensors}]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"head.weight": np.ones((2, 2))}, "they lack '1.bias', '1.weight'; they hold"),
        ({"1.weight": np.ones((2, 3)), "1.bias": np.ones(2)}, r"\[2, 3\], the network's \[2, 2\]"),
        ({"1.weight": np.ones((2, 2), np.int8), "1.bias": np.ones(2)}, "int8.*unquantised"),
    ],
)
def test_an_upload_that_does_not_fit_says_why_and_another_is_taken(workshop, tensors, words):
    workshop.define(upload=True)
    workshop.upload("model", safetensors.numpy.save(tensors))
    run = carry_out(workshop)
    assert run.state == "failed"
    assert re.search(words, run.failure_reason), run.failure_reason
    fitting = {"1.weight": np.ones((2, 2), np.float32), "1.bias": np.ones(2, np.float32)}
    workshop.upload("model", safetensors.numpy.save(fitting))
    assert carry_out(workshop).state == "published"
