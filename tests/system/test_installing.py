"""The wheel in fresh environments: the core alone, and all of it beside somebody's own ``app``."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import httpx
import pytest

from app.evidence.certificates.verification import difference
from tests.support.patience import PATIENCE_S, until
from tests.support.service import free_port

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "v1"
MOST_BYTES = 60_000_000
_SOURCES = ("app", "demo", "expunge", "migrations", "workers")
_MISSING = ("alembic", "fastapi", "numpy", "psycopg", "pyarrow", "redis", "scipy", "torch")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "wheel"))
    for name in (*_SOURCES, "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", target, source], check=True)
    return next(target.glob("*.whl"))


def _environment(folder: Path) -> tuple[Path, Path]:
    """Make an empty virtual environment; return its programs and its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    return folder / "bin", packages


def _install(programs: Path, *what: object) -> None:
    pip = [sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", *what], check=True)


def _clean(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.defpath, "HOME": str(folder), "LANG": "C.UTF-8", **more}


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    programs, packages = _environment(tmp_path_factory.mktemp("core"))
    _install(programs, wheel)
    # What pip compiled is counted as well.
    files = [path for path in packages.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    installed = {path.name for path in packages.iterdir()}
    assert installed.isdisjoint(_MISSING)
    return programs


def _run(core: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [core / "expunge", *map(str, words)]
    return subprocess.run(
        command, cwd=core.parent, env=_clean(core), capture_output=True, text=True, check=False
    )


def _verify(core: Path, case: str) -> subprocess.CompletedProcess[str]:
    weights, trusted = GOLDEN / f"{case}.safetensors", GOLDEN / "trusted-keys.json"
    bundle = GOLDEN / f"{case}.certificate.json"
    return _run(core, "verify", bundle, "--weights", weights, "--trusted", trusted)


def test_the_core_verifies(core: Path) -> None:
    cases = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.certificate.json"))
    assert len(cases) >= 16
    answers = {case: _verify(core, case) for case in cases}
    refused = answers.pop("dp_sgd")  # sampled, so that it is composed by Fourier transform
    assert {case for case, answer in answers.items() if answer.returncode != 0} == set()
    assert refused.returncode != 0
    assert "6. FAIL  guarantee: it cannot be recomputed here" in refused.stdout
    assert "pip install 'expunge[accounting]'" in refused.stdout


def test_the_core_plans_what_all_of_it_plans(core: Path) -> None:
    words = ("plan", "--epsilon", "1", "--delta", "1e-5", "--json")
    planned = _run(core, *words)
    assert planned.returncode == 0
    everywhere = subprocess.run(
        [sys.executable, "-m", "app.cli", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    quotes, expected = (json.loads(each.stdout) for each in (planned, everywhere))
    assert difference(expected, quotes, "quotes") is None
    assert quotes["quotes"][0]["mechanism"] == "gradient_clipping"


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["up"], "server"),
        (["storage", "check", "--anything"], "server"),
        (["log", "fsck"], "server"),
        (["predict", "W", "--input", "W", "--out", "scores.parquet"], "tables"),
        (["model", "export", "W", "--out", "m.onnx"], "onnx"),
        (["model", "check", "m:f", "--shape", "2", "--classes", "2"], "worker"),
        (["model", "recompute", "digits"], "worker"),
    ],
)
def test_what_the_core_lacks_is_named(core: Path, words: list[str], extra: str) -> None:
    weights = str(GOLDEN / "dp_sgd.safetensors")
    answer = _run(core, *(weights if word == "W" else word for word in words))
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: ")
    assert answer.stderr.rstrip().endswith(f"is not installed: pip install 'expunge[{extra}]'")
    assert len(answer.stderr.splitlines()) == 1


def test_the_library_needs_no_more_than_the_command(core: Path) -> None:
    program = (
        "import expunge; expunge.Client, expunge.verify; "
        "print(expunge.account('output_perturbation', "
        "{'initial_clip': 1.0, 'noise_std': 4.0}).epsilon(delta=1e-5)); expunge.load"
    )
    answer = subprocess.run(
        [core / "python", "-c", program],
        cwd="/",
        env=_clean(core),
        capture_output=True,
        text=True,
        check=False,
    )
    assert float(answer.stdout) > 0
    assert "numpy is not installed: pip install 'expunge[torch]'" in answer.stderr


def test_the_service_starts_beside_somebodys_own_app(wheel: Path, tmp_path: Path) -> None:
    programs, packages = _environment(tmp_path / "all")
    _install(programs, "--no-deps", wheel)
    # All that the extras bring is taken from where these tests run.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    project = tmp_path / "project"
    for name in ("app", "workers", "migrations", "redis"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(f"raise SystemExit('their {name}')")
    port = free_port()
    environment = _clean(
        tmp_path,
        EXPUNGE_DATA_DIR=str(tmp_path / "data"),
        EXPUNGE_PORT=str(port),
        PYTHONPATH=str(project),
    )
    log = tmp_path / "log"
    with log.open("wb") as output:
        service = subprocess.Popen(
            [programs / "expunge", "up"],
            cwd=project,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}/readyz"
        until(lambda: httpx.get(url, timeout=PATIENCE_S).json()["workers"] == "ok")
    finally:
        service.terminate()
        assert service.wait(PATIENCE_S) == 0
    assert b"their" not in log.read_bytes()
