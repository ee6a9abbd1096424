"""Loops of PyTorch, Lightning, Hugging Face and scikit-learn, and a notebook, over a service."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT, Reader, reader
from tests.support.environments import bridges_python
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.nightly

BRIDGES = ROOT / "examples" / "bridges"
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
MOST_LINES = 40
MOST_LINES_OF_A_SCRIPT = 120
PATH = os.pathsep.join(map(str, (ROOT, BRIDGES, BRIDGES.parent)))
RUN_NOTEBOOK = """
import json, sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
outputs = [each for cell in notebook.cells if cell.cell_type == "code" for each in cell.outputs]
print("".join(each.get("text", "") for each in outputs))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return bridges_python()


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody in whose folder a service runs that may import the examples' networks."""
    allowed = "digits_network:build,sentiment_network:build,minilm_adapters:build"
    with reader(tmp_path_factory.mktemp("user") / "work") as user:
        known = {"PYTHONPATH": PATH, "EXPUNGE_ALLOWED_FACTORIES": allowed}
        with user.service(**known, MINILM=str(user.directory)):
            yield user


def _run(python: Path, user: Reader, *words: object) -> str:
    done = subprocess.run(
        [python, *map(str, words)],
        cwd=user.directory,
        env=user.environment()
        | {"PYTHONPATH": PATH, "HOME": str(user.directory)}
        | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    ("script", "models"),
    [
        ("pytorch_loop", ["digits-loop"]),
        ("lightning_module", ["digits-lightning"]),
        ("hugging_face", ["reviews"]),
        ("peft_adapters", ["titles"]),
        ("linear_models", ["tumours", "progress"]),
    ],
)
def test_certified_weights_come_back_into_the_users_own_object(
    python: Path, user: Reader, script: str, models: list[str]
) -> None:
    path = BRIDGES / f"{script}.py"
    assert len(path.read_text().splitlines()) <= MOST_LINES_OF_A_SCRIPT  # two screens
    printed = _run(python, user, path)
    versions = re.findall(r"\{'name': '([\w-]+)', 'version': (\d+)\}", printed)
    assert [name for name, _ in versions] == models
    assert all(int(number) >= 2 for _, number in versions), "nothing was forgotten"


def test_the_notebook_ends_with_a_verified_certificate(python: Path, user: Reader) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = [line for cell in code for line in cell.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES
    assert not any(cell.get("outputs") for cell in cells)
    printed = _run(python, user, "-c", RUN_NOTEBOOK, NOTEBOOK)
    assert "{'name': 'leaving', 'version': 2} 0.0" in printed
