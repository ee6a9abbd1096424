"""The Dockerfile: linted, and everything that it names is there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from tests.support.compose import (
    IMAGE,
    ROOT,
    copied,
    image_environment,
    instructions,
    is_in_context,
    last,
)

TARGETS = ("cpu", "cuda")


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    checked = subprocess.run(
        [hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_it_is_built_from_one_image_that_is_named_by_its_digest() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    (base,) = (line for line in lines if line.startswith("ARG PYTHON="))
    assert re.fullmatch(IMAGE, base.removeprefix("ARG PYTHON="))
    stages = [line.split()[3] for line in lines if line.startswith("FROM ")]
    froms = {line.split()[1] for line in lines if line.startswith("FROM ")}
    assert froms - set(stages) == {"${PYTHON}"}
    assert not lines[0].startswith("# syntax=")  # another image, run by the builder


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_installed_has_a_hash_or_is_there_and_reaches_the_builder(target: str) -> None:
    runs = [rest for name, rest in instructions(f"build-{target}") if name == "RUN"]
    hashed, torch, own = (run for run in runs if "pip install" in run)
    assert "--no-deps --only-binary :all: --require-hashes --requirement requirements.lock" in (
        hashed
    )
    assert torch.endswith(" torch")
    assert own.endswith(" --no-deps --no-build-isolation .")
    sources = copied(f"build-{target}")
    assert {"app", "workers", "migrations", "requirements.lock", "pyproject.toml"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_in_context(source), source


def test_secrets_data_and_waste_never_reach_the_builder() -> None:
    for path in (
        ".git/config",
        ".expunge/keys/signing-ed25519.pem",
        ".env",
        "secrets/database_url",
        "app/signing.pem",
        "app/.expunge/keys/admin-api-key",
        "tests/conftest.py",
        "app/__pycache__/main.pyc",
    ):
        assert not is_in_context(path), path


@pytest.mark.parametrize("target", TARGETS)
def test_the_image_runs_a_command_as_nobody_in_particular_and_sets_nothing_secret(
    target: str,
) -> None:
    user, _, group = last(target, "USER").partition(":")
    assert int(user) >= 10000
    assert int(group) >= 10000
    environment = image_environment(target)
    assert environment["EXPUNGE_HOST"] == "0.0.0.0"
    assert not [name for name in environment if name.endswith(("_URL", "_KEY", "PASSWORD"))]
    entrypoint, command = last(target, "ENTRYPOINT"), last(target, "CMD")
    assert shutil.which(entrypoint[0], path=str(Path(sys.executable).parent))
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0
