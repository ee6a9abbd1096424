"""A service without one of its optional parts: it starts, trains, forgets and verifies as before.

A copy of the source loses the part, the one line that reaches it, and the part's own tests.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.evidence.certificates.verification import verify
from app.services import Services
from tests.support.digits import DATASET, digits_parquet, head
from tests.support.trust import trust_in

ROOT = Path(__file__).parents[2]
OPENED = "import sys; from app.runtime.settings import Settings; Settings()"
TARGETS = "from app.delivery.publishing.target import targets_of; targets_of(Settings().publishers)"
WALK = "tests/system/test_optional_parts.py::test_a_service_trains_forgets_and_verifies"

# An editable installation would find in its own folder what the copy lacks.
SITE = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "Editable" not in repr(each)]
"""


@dataclass(frozen=True)
class Part:
    """An optional part.

    Attributes:
        module: a file, or a folder with all that is in it.
        reached_from: the one file whose one line names it.
        settings: what asks for it, and is told that it is not there.
        rooms: unit tests of what it stood in.
    """

    module: str
    reached_from: str
    rooms: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.module.replace(".", "/")


def _target(module: str, **publisher: str) -> Part:
    return Part(
        f"app.delivery.publishing.{module}",
        "app/delivery/publishing/target.py",
        ("tests/unit/app/delivery",),
        {"EXPUNGE_PUBLISHERS": json.dumps({"there": publisher})},
    )


WITNESS = "witness.example+5f2ac7d3+BHGi6nPT0gSHwyUkf3Lp0KUf1mYh/JnkzAFaA9ITsfjN"
PARTS = {
    "OpenDSR": Part(
        "app.opendsr",
        "app/cli/application.py",
        ("tests/unit/app/api",),
        {
            "EXPUNGE_OPENDSR_DATASETS": '["people"]',
            "EXPUNGE_OPENDSR_IDENTITY_TYPES": '["email"]',
        },
    ),
    "traces": Part(
        "app.runtime.tracing",
        "app/services.py",
        ("tests/unit/app/runtime",),
        {"EXPUNGE_TRACES": "true"},
    ),
    "several devices": Part(
        "workers.distributed",
        "workers/jobs.py",
        ("tests/unit/workers/leases", "tests/unit/workers/seal"),
        {"EXPUNGE_DEVICES": "2"},
    ),
    "witnesses": Part(
        "app.evidence.witnesses",
        "app/services.py",
        ("tests/unit/app/evidence/certificates/test_growth.py",),
        {"EXPUNGE_WITNESSES": json.dumps({"https://witness.example": WITNESS})},
    ),
    "a folder to publish to": _target("folder", kind="folder", path="/models"),
    "a bucket to publish to": _target("bucket", kind="s3", bucket="models"),
    "MLflow to publish to": _target("mlflow", kind="mlflow", url="https://mlflow.example"),
}


def test_a_service_trains_forgets_and_verifies(
    api: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(60))
    assert api.post("/v1/models", json=head("digits", epsilon=3.0)).status_code == 201
    work()
    body = {"dataset": "digits", "record_ids": ["record-3"]}
    request = api.post("/v1/forget-requests", json=body).json()["id"]
    work()
    assert api.get(f"/v1/forget-requests/{request}").json()["state"] == "completed"
    weights = tmp_path / "weights"
    weights.write_bytes(api.get("/v1/models/digits/certified/weights").content)
    number = api.get("/v1/models/digits/certified").json()["number"]
    bundle = api.get(f"/v1/models/digits/versions/{number}/certificate").content
    verify(bundle=bundle, weights=weights, trusted=trust_in(services))


@pytest.mark.parametrize("name", PARTS)
def test_a_part_can_be_left_out(name: str, tmp_path: Path) -> None:
    part, copy = PARTS[name], tmp_path / "expunge"
    _copy(copy)
    _leave_out(part, copy)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not nightly"]
    done = _run(copy, *run, WALK, *part.rooms)
    assert done.returncode == 0, done.stdout[-3000:]

    asks = f"{OPENED}; {TARGETS}" if "EXPUNGE_PUBLISHERS" in part.settings else OPENED
    assert _run(copy, sys.executable, "-c", asks).returncode == 0
    for setting, value in part.settings.items():
        done = _run(copy, sys.executable, "-c", asks, **{setting: value})
        assert done.returncode != 0
        said = done.stderr.strip().splitlines()[-1]
        assert setting in said
        assert "not a part of this installation" in said


def _copy(folder: Path) -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def _leave_out(part: Part, copy: Path) -> None:
    """Remove a part, the line that names it, and tests that cannot be loaded without it."""
    gone = copy / part.path
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.with_suffix(".py").unlink()
    (copy / "sitecustomize.py").write_text(SITE)
    package, _, last = part.module.rpartition(".")
    named = re.compile(
        rf"(from|import) {re.escape(part.module)}\b|from {re.escape(package)} import {last}\b"
        rf'|^ +(".*": )?"{re.escape(part.module)}",$'
    )
    for folder in ("app", "demo", "expunge", "workers"):
        for path in (copy / folder).rglob("*.py"):
            lines = path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if not named.search(line)]
            where = str(path.relative_to(copy))
            if where == "app/runtime/settings.py":  # it says what is missing
                continue
            assert len(lines) - len(kept) == (where == part.reached_from), where
            path.write_text("".join(kept))
    own = copy / "tests" / "unit" / part.path
    own.with_name(f"test_{own.name}.py").unlink(missing_ok=True)
    for path in (copy / "tests" / "unit").rglob("*.py"):
        if named.search(path.read_text()):
            path.unlink()


def _run(copy: Path, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: each for name, each in os.environ.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", **settings}
    return subprocess.run(
        command, cwd=copy, env=environment, check=False, capture_output=True, text=True
    )
