"""A write that was refused is told as such, whatever libraries or our own code made of it."""

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from app.domain.errors import PlanError, RunFailedError, WriteRefusedError
from app.domain.recipes import TrainingRecipe
from workers.leases.attempts import is_permanent
from workers.noise.generators import SecureNoise
from workers.seal.scrubbing import scrubbed
from workers.seal.sealed import Sealed
from workers.seal.write_guard import writes_refused
from workers.training.dp_sgd.training import PrivateTraining, train_privately
from workers.training.networks.operator_code import called

SECRET = "alice@example.com"


def write():
    Path(SECRET).mkdir()


def as_a_plan_error():
    try:
        write()
    except OSError as error:
        raise PlanError("the network looks at values") from error


def as_another_error_of_a_handler():
    try:
        as_a_plan_error()
    except PlanError:
        raise RuntimeError(SECRET)  # noqa: B904 - its context is what counts


def as_a_failed_import():
    try:
        import_module("imports_late")
    except OSError as error:
        raise ImportError(SECRET) from error


def as_an_exit():
    try:
        write()
    except OSError:
        sys.exit(SECRET)


def of_the_operators_code():
    called("training the network", as_another_error_of_a_handler)


@pytest.mark.parametrize(
    "work",
    [
        write,
        as_a_plan_error,
        as_another_error_of_a_handler,
        as_a_failed_import,
        as_an_exit,
        of_the_operators_code,
    ],
)
def test_a_refused_write_keeps_its_name(work, tmp_path, monkeypatch):
    (tmp_path / "imports_late.py").write_text("import os\nos.mkdir('cache')\n")
    monkeypatch.syspath_prepend(tmp_path)
    ended = []
    with writes_refused(), pytest.raises(WriteRefusedError) as raised:
        scrubbed("training", work, on_failure=lambda: ended.append(True))
    assert str(raised.value) == "refused while weights are under their target: os.mkdir"
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)
    assert is_permanent(raised.value)
    assert ended == [True]


def tolerated():
    with suppress(OSError):
        write()
    raise PlanError("its own reason")


def test_a_refusal_that_was_handled_blames_nothing():
    with writes_refused(), pytest.raises(PlanError, match="its own reason"):
        scrubbed("training", tolerated, on_failure=lambda: None)
    with pytest.raises(RunFailedError, match="ValueError"):
        called("the code", lambda: int(SECRET))


class Writing(nn.Linear):
    def forward(self, batch):
        write()
        return super().forward(batch)


def test_dp_sgd_does_not_call_a_refused_write_a_look_at_values(digits):
    training = PrivateTraining(noise_multiplier=4.0, gradient_clip=1.0, sampling_rate=0.05, steps=1)
    sealed = Sealed(lambda: Writing(64, 10), epsilon=8.0, delta=1e-5, device=torch.device("cpu"))
    with writes_refused(), pytest.raises(WriteRefusedError, match=r"os\.mkdir"):
        sealed.train_by(
            lambda network, _: train_privately(
                network, digits, TrainingRecipe(), training, noise=SecureNoise()
            )
        )
