"""Every command of docs/verifying.md, run on a golden certificate by tools that are not ours."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import require_tools
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "v1"
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs/verifying.md").read_text(), re.M | re.S)
TOOLS = ("openssl", "jq", "xxd", "base64", "sha256sum")


@pytest.fixture(params=["restated", "tracked_release"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A certificate that came after another of its model, or one beside itself."""
    restated = request.param == "restated"
    older = "gradient_clipping" if restated else request.param
    receipt = "restated.receipt.json" if restated else "receipt.json"
    require_tools(*TOOLS)
    shutil.copy(GOLDEN / f"{request.param}.certificate.json", tmp_path / "bundle.json")
    shutil.copy(GOLDEN / f"{older}.certificate.json", tmp_path / "older-bundle.json")
    shutil.copy(GOLDEN / f"{request.param}.safetensors", tmp_path / "model.safetensors")
    shutil.copy(GOLDEN / receipt, tmp_path / "receipt.json")
    shutil.copy(GOLDEN / "checkpoint.txt", tmp_path / "old.checkpoint")
    shutil.copy(GOLDEN / "trusted-keys.json", tmp_path / "trusted-keys.json")
    return tmp_path


def run(folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
    programs = Path(sys.executable).parent
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_every_command_succeeds(folder: Path) -> None:
    answer = run(folder, "\n".join(COMMANDS))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("Signature Verified Successfully") == 2
    assert "model.safetensors: OK" in answer.stdout
    assert answer.stdout.count("the certificate holds") == 3


@pytest.mark.parametrize(
    ("field", "block"),
    [
        (".envelope.payload", 0),
        (".log.entry", 3),
        (".log.checkpoint", 4),
        (".log.inclusion[0]", 5),
        (".request.covered.commitments[0]", 7),
    ],
)
def test_a_changed_bundle_fails_at_its_step(folder: Path, field: str, block: int) -> None:
    """The blocks before it pass, so it is this step that notices."""
    original = (folder / "bundle.json").read_text()
    changed = run(folder, f"""jq '{field} |= (.[0:9] + "A" + .[10:])' bundle.json""").stdout
    assert json.loads(changed) != json.loads(original)
    (folder / "bundle.json").write_text(changed)
    answer = run(folder, "\n".join([*COMMANDS[:block], "echo all before it pass", COMMANDS[block]]))
    assert "all before it pass" in answer.stdout, answer.stdout + answer.stderr
    assert answer.returncode != 0
