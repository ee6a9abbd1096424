"""Commands that need no service: numbers, and the offline check."""

import json

import pytest
from typer.testing import CliRunner

from app.cli.main import app

runner = CliRunner()
NAMED = ["--mechanism", "gradient_clipping"]
PAPER = [
    "--param=initial_clip=20",
    "--param=gradient_clip=10",
    "--param=learning_rate=0.01",
    "--param=weight_decay=50",
    "--param=steps=11",
]


def test_account_prints_the_reference_values() -> None:
    arguments = ["account", "--mechanism", "gradient_clipping", "--param", "noise_std=0.25679"]
    answer = runner.invoke(app, [*arguments, *PAPER, "--delta", "1e-5", "--json"])

    assert answer.exit_code == 0
    printed = json.loads(answer.stdout)
    assert printed["mu"] == pytest.approx(1.414212, abs=5e-7)
    assert printed["epsilon"] == pytest.approx(6.573, abs=5e-4)
    assert printed["neighbouring_relation"] == "any_start"


def test_plan_prints_the_reference_noise() -> None:
    answer = runner.invoke(app, ["plan", "--epsilon", "1", "--delta", "1e-5", *PAPER, "--json"])

    assert answer.exit_code == 0
    printed = json.loads(answer.stdout)
    (quote,) = printed["quotes"]
    assert printed["choice"] == quote["mechanism"] == "gradient_clipping"
    assert quote["parameters"]["noise_std"] == pytest.approx(1.3548, abs=5e-5)
    assert (quote["parameters"]["steps"], quote["parameters"]["weight_decay"]) == (11, 50)


def test_schedules_are_planned_and_accounted_for() -> None:
    schedules = ["--param=learning_rate=[0.2, 0.1, 0.05]", "--param=gradient_clip=[0.3, 0.2, 0.1]"]
    printed = runner.invoke(app, ["plan", *NAMED, *schedules]).stdout
    assert "learning_rate=[0.2 … 0.05]" in printed

    answer = runner.invoke(app, ["plan", *NAMED, *schedules, "--json"])
    (quote, *_) = json.loads(answer.stdout)["quotes"]
    parameters = [f"--param={name}={value}" for name, value in quote["parameters"].items()]
    accounted = runner.invoke(app, ["account", *NAMED, *parameters, "--json"])

    assert json.loads(accounted.stdout)["epsilon"] == quote["guarantee"]["epsilon"] <= 1.0


def test_plan_prints_every_offer_and_every_reason_in_words() -> None:
    printed = runner.invoke(app, ["plan", *PAPER]).stdout

    assert "gradient_clipping  <- auto" in printed
    assert "noise_std=1.3548" in printed
    assert "exact_training: not offered, needs a linear_head" in printed


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["account", "--mechanism", "magic"], "no mechanism or quantity named 'magic'"),
        (["account", "--mechanism", "gradient_clipping"], "initial_clip must be given"),
        (["plan", "--param", "steps"], "expected NAME=VALUE"),
        (["plan", *NAMED, "--param", "sigma=1"], "unknown parameter"),
        (["plan", *NAMED, "--param", "noise_std=[0.1, 0.1]"], "leave it out"),
        (["plan", *NAMED, "--param", "noise_std=[2, null]"], "noise_std must be a finite number"),
        (["plan", *NAMED, "--param", "noise_std=many"], "a number or a list of numbers"),
        (["plan", *NAMED, "--param", "steps=nan"], "steps"),
        (["plan", *NAMED, "--param", "steps=inf"], "steps"),
        (["plan", *NAMED, "--param", "initial_clip=0"], "initial_clip must be above 0"),
        (["plan", "--epsilon", "0"], "epsilon must be above 0"),
        (["plan", "--delta", "2"], "delta must be"),
    ],
)
def test_an_error_is_one_line_in_words(arguments: list[str], reason: str) -> None:
    answer = runner.invoke(app, arguments)

    assert answer.exit_code == 1
    assert isinstance(answer.exception, SystemExit)
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: ")
    assert reason in line
