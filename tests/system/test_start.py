"""A newcomer's first command on data that a package ships, and the three that follow."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from tests.support.documents import Reader, reader
from tests.support.patience import PATIENCE_S, until

pytestmark = pytest.mark.slow


IN_PYTHON = """
import json
from pyarrow import csv
import expunge
rows = csv.read_csv("all.csv")
made = expunge.start(rows, target="benign", subject="patient", yes=True)
signed = "payload" in made.certificate["envelope"]
print(json.dumps([made.dataset, made.model, made.score, made.baseline, signed]))
"""


@pytest.fixture
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with reader(tmp_path_factory.mktemp("newcomer") / "work") as newcomer:
        yield newcomer
        newcomer.expunge("down")


def test_a_file_becomes_a_model_that_forgets_predicts_and_learns_next_months_rows(
    newcomer: Reader,
) -> None:
    data = load_breast_cancer()
    names = [
        "patient",
        "sample",
        *(name.replace(" ", "_") for name in data.feature_names),
        "benign",
    ]
    lines = [
        ",".join([f"p{number // 2}", f"s{number}", *map(repr, row.tolist()), ("no", "yes")[label]])
        for number, (row, label) in enumerate(zip(data.data, data.target, strict=True))
    ]
    for number in range(0, 300, 25):  # nobody knows what became of these
        lines[number] = lines[number].removesuffix("yes").removesuffix("no")
    table = newcomer.directory / "scans.csv"
    table.write_text("\n".join([",".join(names), *lines[:540]]))
    (newcomer.directory / "all.csv").write_text(table.read_text())

    done = newcomer.expunge(
        *("start", "scans.csv", "--target", "benign", "--subject", "patient", "--yes", "--json")
    )

    assert done.returncode == 0, done.stderr
    counted = newcomer.expunge("start", "scans.csv", "--target", "benign", "--name", "other")
    assert "12 of 540 rows have no value of 'benign': not learned from" in counted.stdout
    found = json.loads(done.stdout)
    evaluation = found["model"]["certified"]["evaluation"]
    assert evaluation["metrics"]["accuracy"] > evaluation["baseline"]
    model = found["model"]["name"]
    assert model in ("scans-trees", "scans-linear")
    again = newcomer.expunge("start", "scans.csv", "--target", "benign", "--yes")
    assert again.returncode == 1
    assert "dataset 'scans' exists" in again.stderr

    for person in ("p7", "p50"):  # nothing was learned from a row of p50
        forget = ("forget", "scans", "--subject", person, "--wait", "--json")
        assert json.loads(newcomer.expunge(*forget).stdout)["state"] == "completed"
    # Cells that are missing in the next export are no reason to refuse it.
    lines[560] = ",".join([*lines[560].split(",")[:2], "", *lines[560].split(",")[3:]])
    table.write_text("\n".join([",".join(names), *lines[540:]]))
    assert (
        json.loads(newcomer.expunge("dataset", "push", "scans", "scans.csv").stdout)["added"] == 29
    )
    assert newcomer.expunge("model", "retrain", model, "--wait").returncode == 0
    assert newcomer.expunge("download", model, "--out", "release").returncode == 0
    (weights,) = (newcomer.directory / "release").glob("*.safetensors")
    predicted = newcomer.expunge(
        *("predict", weights, "--input", "scans.csv", "--out", "scores.parquet")
    )
    assert "29 predictions" in predicted.stdout + predicted.stderr
    assert np.isfinite(evaluation["held_out_loss"])

    done = newcomer.python(IN_PYTHON)
    assert done.returncode == 0, done.stderr
    dataset, model, score, baseline, signed = json.loads(done.stdout.splitlines()[-1])
    assert (dataset, model in ("benign-trees", "benign-linear"), signed) == ("benign", True, True)
    assert score > baseline
    assert f"expunge download {model} --out release" in done.stdout

    assert "stopped process" in newcomer.expunge("down").stdout
    assert "nothing runs" in newcomer.expunge("down").stdout


def _purchases(rows: int) -> str:
    """Return a table that takes a while to learn."""
    random = np.random.default_rng(0)
    numbers = random.normal(size=(rows, 20)).round(3)
    kinds = np.digitize(numbers[:, 0] * numbers[:, 1], np.linspace(-1, 1, 9))
    lines = [
        f"p{place},{','.join(map(str, row))},{kind}"
        for place, (row, kind) in enumerate(zip(numbers, kinds, strict=True))
    ]
    return "\n".join([f"id,{','.join(f'x{each}' for each in range(20))},kind", *lines])


def test_what_fails_before_a_row_is_sent_is_named_and_leaves_nothing_behind(
    newcomer: Reader,
) -> None:
    text = _purchases(200)
    for name, content in {
        "good": text,
        "twice": text + "\n" + text.splitlines()[7],
        "torn": text + '\np900,"1',
    }.items():
        (newcomer.directory / f"{name}.csv").write_text(content)
    (newcomer.directory / "half.parquet").write_bytes(b"PAR1" + bytes(100))
    before = sorted(newcomer.directory.iterdir())
    for words, told in (
        (("good.csv", "--target", "sort"), "good.csv has no column 'sort', but id, x0"),
        (("twice.csv", "--target", "kind", "--record", "id"), "row 201, column 'id'"),
        (("torn.csv", "--target", "kind"), "torn.csv"),
        (("half.parquet", "--target", "kind"), "half.parquet"),
        (("none.csv", "--target", "kind"), "none.csv"),
    ):
        done = newcomer.expunge("start", *words, "--yes")
        assert done.returncode in (1, 2), done.stdout
        assert told in done.stderr
        assert "Traceback" not in done.stderr
        assert sorted(newcomer.directory.iterdir()) == before
    with socket.create_server(("127.0.0.1", int(newcomer.environment()["EXPUNGE_PORT"]))):
        done = newcomer.expunge("start", "good.csv", "--target", "kind", "--yes")
    assert done.returncode == 1
    assert "the service did not start" in done.stderr
    assert sorted(newcomer.directory.iterdir()) == before


def test_a_start_that_is_interrupted_undoes_what_it_has_begun(newcomer: Reader) -> None:
    (newcomer.directory / "purchases.csv").write_text(_purchases(20_000))
    words = ("start", "purchases.csv", "--target", "kind", "--yes")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's tests ignore it
    begun = subprocess.Popen(
        ["expunge", *words],
        cwd=newcomer.directory,
        env=newcomer.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: "purchases-" in newcomer.expunge("model", "list", "--json").stdout)
    begun.send_signal(signal.SIGINT)
    assert begun.wait(PATIENCE_S) == 130
    assert "nothing runs" in newcomer.expunge("down").stdout
    assert newcomer.expunge("up", "--detach").returncode == 0
    for kind in ("model", "dataset"):
        assert json.loads(newcomer.expunge(kind, "list", "--json").stdout) == []
