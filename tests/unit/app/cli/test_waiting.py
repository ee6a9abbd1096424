"""What the command line shows while it waits."""

import pytest

from app.cli.waiting import run_progress

RUN = {"state": "running", "phase": "training", "step": 3, "total_steps": 9}


@pytest.mark.parametrize(
    ("epsilon", "loss", "shown"),
    [
        (None, None, ""),
        (1.23456, None, "epsilon 1.235"),
        (1.0, 0.5, "epsilon 1, loss 0.5"),
        (None, 0.25, "loss 0.25"),
    ],
)
def test_what_is_known_of_a_run_is_shown(
    epsilon: float | None, loss: float | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_progress() as update:
        update({**RUN, "epsilon": epsilon, "loss": loss}, "train")

    said = " ".join(capsys.readouterr().err.split())
    assert "train: training" in said
    assert shown in said
    assert ("epsilon" in said, "loss" in said) == (epsilon is not None, loss is not None)
