"""An operator's task is tried before records are read: what it mixes or keeps is refused."""

import tempfile

import numpy as np
import pytest
import torch
from torch import nn

from app.domain.errors import PlanError, RunFailedError, WriteRefusedError
from app.domain.tasks import catalogue
from tests.support.operators import PACKAGE, operators_package
from tests.support.own_tasks import OWN, Rents
from workers.mechanisms.rehearsal import rehearse
from workers.training.examples import Examples
from workers.training.tasks.catalogue import form_of, task_of

CPU = torch.device("cpu")


def try_out(monkeypatch, kind):
    operators_package(monkeypatch, kind)
    spec = catalogue.from_json(OWN | {"path": f"{PACKAGE}:{kind.__name__}"})
    task = task_of(spec, allowed=[f"{PACKAGE}:*"])
    form = form_of(spec, task, spec.schema())
    return rehearse(lambda: nn.Linear(1, 1), task, form, device=CPU)


def test_a_task_of_rows_alone_is_accepted(monkeypatch):
    assert try_out(monkeypatch, Rents).flat.size == 2


class Centred(Rents):
    def encode_target(self, rows):
        made = super().encode_target(rows)
        return made | {"rent": made["rent"] - made["rent"].mean()}


class Counting(Rents):
    seen = 0

    def encode_target(self, rows):
        self.seen += len(rows)
        made = super().encode_target(rows)
        return made | {"rent": made["rent"] + self.seen}


class Normalising(Rents):
    def loss(self, module, batch):
        losses = super().loss(module, batch)
        return losses / losses.sum()


class Remembering(Rents):
    """Its loss depends on the records of earlier batches."""

    largest = 0.0

    def loss(self, module, batch):
        self.largest = max(self.largest, float(batch["inputs"].max()))
        return super().loss(module, batch) * (1 + self.largest)


class Mixing(Rents):
    """Mixup: each record gets a part of another one."""

    def augment(self, batch, generator):
        share = torch.rand(1, generator=generator)
        return {name: share * each + (1 - share) * each.roll(1, 0) for name, each in batch.items()}


class OfItsOwn(Rents):
    def augment(self, batch, generator):
        return batch | {"inputs": batch["inputs"] + torch.randn(batch["inputs"].shape)}


class Shifting(Rents):
    def augment(self, batch, generator):
        moved = torch.randn(batch["inputs"].shape, generator=generator)
        return batch | {"inputs": batch["inputs"] + moved}


def test_a_random_variant_of_one_record_is_accepted(monkeypatch):
    try_out(monkeypatch, Shifting)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Mixing, "augment gives a record a part of others"),
        (OfItsOwn, "random numbers from its generator"),
        (Centred, "otherwise when other rows are beside it"),
        (Counting, "otherwise when other rows are beside it"),
        (Normalising, "loss of a record depends on the records beside it"),
        (Remembering, "computes something else of the same records"),
    ],
)
def test_what_mixes_or_keeps_records_is_refused(monkeypatch, kind, words):
    with pytest.raises(PlanError, match=words):
        try_out(monkeypatch, kind)


class OneLoss(Rents):
    def loss(self, module, batch):
        return super().loss(module, batch).mean()


class Constant(Rents):
    def loss(self, module, batch):
        return batch["rent"].clone().requires_grad_()


class Infinite(Rents):
    def loss(self, module, batch):
        return super().loss(module, batch) / 0.0


class Misnamed(Rents):
    headline = "accuracy"


class OtherShape(Rents):
    def encode(self, rows):
        made = super().encode(rows)
        return made | {"inputs": np.repeat(made["inputs"], 2, axis=1)}


class Text(Rents):
    def encode(self, rows):
        return super().encode(rows) | {"note": np.array(["a"] * len(rows))}


class Twice(Rents):
    def encode_target(self, rows):
        return super().encode_target(rows) | {"inputs": np.zeros((len(rows), 1))}


class Peeking(Rents):
    def predict(self, module, batch):
        return {"error": module(batch["inputs"])[:, 0] - batch["rent"]}


class OneForAll(Rents):
    def predict(self, module, batch):
        return {"rent": module(batch["inputs"]).mean()[None]}


class Unfinished(Rents):
    predict = None


class Untargeted(Rents):
    encode_target = None


class Failing(Rents):
    def encode(self, rows):
        raise ValueError("what its author must see")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OneLoss, "one loss a record"),
        (Constant, "does not depend on the network"),
        (Infinite, "finite"),
        (Misnamed, "headline 'accuracy' is none of its metrics"),
        (OtherShape, r"makes inputs of float32 \[2\], and the definition says float32 \[1\]"),
        (Text, "must give note as numbers"),
        (Twice, "encode_target of the task .* must not give inputs again"),
        (Peeking, "predict of the task raised KeyError .*rows to predict have no target"),
        (OneForAll, "predict of the task must give each record a rent"),
        (Unfinished, "has no method 'predict'"),
        (Untargeted, "has no method 'encode_target'"),
        (Failing, "ValueError: what its author must see"),
    ],
)
def test_what_cannot_be_used_says_why(monkeypatch, kind, words):
    with pytest.raises(RunFailedError, match=words):
        try_out(monkeypatch, kind)


def test_what_it_raises_of_records_is_told_by_its_place_alone(monkeypatch):
    operators_package(monkeypatch, Failing)
    spec = catalogue.from_json(OWN | {"path": f"{PACKAGE}:Failing"})
    task = task_of(spec, allowed=[f"{PACKAGE}:*"], in_full=True)
    with pytest.raises(RunFailedError, match=r"ValueError in test_conformance\.py") as caught:
        task.encode(Rents().sample(2))
    assert "author" not in str(caught.value)


@pytest.mark.parametrize("value", [None, "x", np.nan])
def test_a_tensors_name_that_is_made_of_records_is_not_told(monkeypatch, value):
    class Pivoting(Rents):
        def encode_target(self, rows):
            values = 1.0 if value is None else [value] * len(rows)
            return {f"rents {rent:g}": values for rent in rows["rent"].to_pylist()}

    operators_package(monkeypatch, Pivoting)
    spec = catalogue.from_json(OWN | {"path": f"{PACKAGE}:Pivoting"})
    task = task_of(spec, allowed=[f"{PACKAGE}:*"], in_full=True)
    with pytest.raises(RunFailedError, match=r"encode_target of .* must give every") as caught:
        task.encode(Rents().sample(2))
    assert "900" not in str(caught.value)


def test_other_tensors_than_the_tasks_are_not_named(monkeypatch):
    operators_package(monkeypatch, Rents)
    spec = catalogue.from_json(OWN | {"path": f"{PACKAGE}:Rents"})
    form = form_of(spec, task_of(spec, allowed=[f"{PACKAGE}:*"]), spec.schema())
    read = {name: np.zeros((2, 1)) for name in ("inputs", "rents 900")}
    with pytest.raises(RunFailedError, match=r"than the task's inputs, rent$"):
        Examples.of(form, read)


class Spooling(Rents):
    """Its encoder keeps its rows in a file for a while."""

    def encode(self, rows):
        with tempfile.TemporaryFile() as file:
            file.write(str(rows).encode())
        return super().encode(rows)


def test_an_encoder_that_writes_files_is_refused(monkeypatch):
    with pytest.raises(WriteRefusedError, match="encoding may not write files"):
        try_out(monkeypatch, Spooling)
