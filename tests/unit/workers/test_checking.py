"""``expunge model check``: a network tried mechanism by mechanism."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from app.cli.main import app
from app.domain.architectures import ArchitectureSpec
from app.planning.mechanisms.catalogue import MECHANISMS
from tests.support.arrays import array_task
from tests.support.networks import Computing, Tied
from tests.support.operators import PACKAGE, operators_package
from tests.support.own_tasks import OWN, Rents
from workers import checking
from workers.checking import Order, findings

SOURCE = """
import torch
from torch import nn


def build(*, input_shape, classes, width):
    if width > 9:
        raise ValueError(f"a width of {width} is too much")
    return nn.Sequential(nn.Linear(*input_shape, width), Last(width, classes))
"""
PLAIN = "Last = nn.Linear"
COMPILED = """
class Last(nn.Linear):
    @torch.compile
    def forward(self, features):
        return super().forward(features)
"""


def order(monkeypatch, build, **more):
    operators_package(monkeypatch).build = lambda **_: build()
    task = array_task(6, **more)
    network = {"name": "custom", "factory": f"{PACKAGE}:build"}
    document = {"architecture": network, "task": task}
    return Order.from_json({**document, "data": None, "record_id": "record_id"})


def outcomes(monkeypatch, build, **more):
    found = list(findings(order(monkeypatch, build, **more)))
    return {finding.subject: finding for finding in found}


def test_every_mechanism_has_a_verdict_and_a_reason(monkeypatch):
    monkeypatch.setenv("EXPUNGE_ALLOWED_FACTORIES", json.dumps([f"{PACKAGE}:*"]))
    found = outcomes(monkeypatch, lambda: Tied(normalised=True))
    verdicts = {name: found[name].outcome for name in MECHANISMS}
    working = {"gradient_clipping", "model_clipping", "output_perturbation", "retraining"}
    assert {name for name, outcome in verdicts.items() if outcome == "works"} == working
    assert "BatchNorm1d" in found["dp_sgd"].detail
    assert "linear_head" in found["tracked_release"].detail
    assert "smoothness" in found["noisy_gd_nonconvex"].detail
    assert "norm.running_mean" in found["buffers"].detail
    assert found["tied weights"].detail.startswith("other.weight")
    assert "setting" not in found


def test_a_network_that_fails_where_a_mechanism_uses_it_is_refused_there(monkeypatch):
    def deciding():
        return Computing(
            lambda own, x: own.head(own.first(x if x.sum() > 0 else -x).relu()),
            first=nn.Linear(6, 6),
            head=nn.Linear(6, 2),
        )

    found = outcomes(monkeypatch, deciding)
    assert found["dp_sgd"].outcome == "refused"
    assert "looks at values" in found["dp_sgd"].detail
    assert found["gradient_clipping"].outcome == "works"
    assert "EXPUNGE_ALLOWED_FACTORIES" in found["setting"].detail


def test_a_text_network_works_with_dp_sgd(monkeypatch):
    def text():
        return nn.Sequential(nn.Embedding(50, 2), nn.Flatten(), nn.Linear(12, 2))

    tokens = {"dtype": "int64", "vocabulary": 50}
    assert outcomes(monkeypatch, text, **tokens)["dp_sgd"].outcome == "works"


def test_of_an_ensemble_a_member_is_tried(monkeypatch):
    asked = order(monkeypatch, lambda: Tied(normalised=True))
    described = asked.description
    ensemble = ArchitectureSpec("ensemble", members=3, of=described.architecture)
    asked = replace(asked, description=replace(described, architecture=ensemble))
    found = {each.subject: each for each in findings(asked)}
    assert found["network"].detail.startswith("Tied")
    assert found["sharded_retraining"].outcome == "works"
    assert {found[name].outcome for name in MECHANISMS.keys() - {"sharded_retraining"}} == {
        "refused"
    }


@pytest.mark.parametrize("members", [None, 3])
def test_trees_are_grown_as_runs_grow_them(members):
    architecture = {"name": "boosted_trees", "options": {"trees": 3}}
    if members is not None:
        architecture = {"name": "ensemble", "members": members, "of": architecture}
    asked = {"architecture": architecture, "task": array_task(2)}
    found = findings(Order.from_json({**asked, "data": None, "record_id": "record_id"}))
    works = [each.subject for each in found if each.outcome == "works"]
    assert works == ["network", "boosting" if members is None else "sharded_retraining"]


def test_what_cannot_be_built_is_the_only_finding(monkeypatch):
    (finding,) = findings(order(monkeypatch, lambda: {}["missing"]))
    assert finding.outcome == "refused"
    assert "KeyError: 'missing'" in finding.detail


class With(nn.Module):
    """A network with one more part: a tensor to train, one that is public, or a layer."""

    def __init__(self, parameter=None, buffer=None, layer=None):
        super().__init__()
        self.head, self.layer = nn.Linear(6, 2), layer
        self.one = None if parameter is None else nn.Parameter(parameter)
        self.register_buffer("other", buffer)

    def forward(self, features):
        return self.head(features)


class Embedded(With):
    def forward(self, features):
        return self.head(self.layer(features.long().clamp(0, 4)))


def quantised():
    return torch.quantize_per_tensor(ONES, 0.1, 0, torch.qint8)


ONES = torch.ones(6)
UNSUPPORTED = {
    "complex": (lambda: With(ONES.to(torch.complex64)), "'one' is complex"),
    "a complex buffer": (lambda: With(buffer=ONES.to(torch.complex128)), "'other' is complex"),
    "sparse": (lambda: With(torch.eye(6).to_sparse()), "'one' is sparse"),
    "compressed": (lambda: With(buffer=torch.eye(6).to_sparse_csr()), "'other' is sparse"),
    "quantised": (lambda: With(buffer=quantised()), "'other' is quantised"),
    "meta": (lambda: With(ONES.to("meta")), "'one' is on the meta device"),
    "statistics": (lambda: With(layer=nn.BatchNorm1d(6, device="meta")), "'layer.weight' is on"),
    "lazy": (lambda: With(layer=nn.LazyLinear(6)), "'layer.weight' is lazy"),
    "lazy buffers": (lambda: With(layer=nn.LazyBatchNorm1d(affine=False)), "'layer.running_mean'"),
    "sync": (lambda: With(layer=nn.SyncBatchNorm(6)), r"'layer' (SyncBatchNorm) computes"),
    "sparse gradients": (lambda: Embedded(layer=nn.EmbeddingBag(5, 6, sparse=True)), "'layer' (Em"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.filterwarnings("ignore")
def test_what_no_mechanism_supports_is_refused_by_name(monkeypatch, name):
    build, words = UNSUPPORTED[name]
    (finding,) = findings(order(monkeypatch, build))
    assert (finding.subject, finding.outcome) == ("network", "refused")
    assert words in finding.detail
    assert "Traceback" not in finding.detail


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn])
def test_short_floats_are_lengthened(monkeypatch, dtype):
    found = outcomes(monkeypatch, lambda: With(ONES.to(dtype), buffer=ONES.to(dtype)))
    assert found["network"].outcome == found["retraining"].outcome == "works"


def test_an_exception_in_the_seal_is_a_refusal(monkeypatch):
    def failing(*_):
        raise RuntimeError("the noisy phase failed: KeyError in nets.py, line 3")

    monkeypatch.setattr(checking, "carried_out", failing)
    found = outcomes(monkeypatch, lambda: nn.Linear(6, 2))
    assert found["retraining"].outcome == "refused"
    assert "nets.py, line 3" in found["retraining"].detail


@pytest.mark.parametrize(
    ("last", "width", "code"),
    [  # each starts programs that import PyTorch
        pytest.param(PLAIN, 8, 0, id="works", marks=pytest.mark.slow),
        pytest.param(PLAIN, 12, 1, id="fails", marks=pytest.mark.slow),
        pytest.param(COMPILED, 8, 0, id="compiled", marks=pytest.mark.nightly),
    ],
)
def test_the_command_tells_by_its_exit_code(tmp_path, monkeypatch, last, width, code):
    (tmp_path / f"{PACKAGE}.py").write_text(SOURCE + last)
    command = [sys.executable, "-m", "app.cli", "model", "check", f"{PACKAGE}:build"]
    command += ["--shape", "6", "--classes", "2", "--option", f"width={width}"]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    if code == 0:
        assert "gradient_clipping     works" in done.stdout
    else:
        assert "ValueError: a width of 12 is too much" in done.stdout
        assert "no mechanism works" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nets:build", "--shape", "3;4", "--classes", "2"], "--shape 3;4"),
        (["nets", "--shape", "3", "--classes", "2"], "import path"),
        (["nets:build", "--shape", "3", "--classes", "1"], "at least 2 names"),
        (["nets:build", "--shape", "3", "--classes", "2", "--option", "width"], "--option width"),
        (["nets:build", "--shape", "3", "--classes", "2", "--option", "classes=3"], "'classes'"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments, words):
    answer = CliRunner().invoke(app, ["model", "check", *arguments])
    assert answer.exit_code == 1
    assert words in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.nightly  # it starts programs that import PyTorch
def test_a_definition_of_columns_is_tried_with_its_task_and_the_operators_own_rows(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    own = (Path(__file__).parents[2] / "support" / "own_tasks.py").read_text()
    (tmp_path / f"{PACKAGE}.py").write_text(own)
    rows = Rents().sample(30).append_column("shop", [[f"shop-{i}" for i in range(30)]])
    rents = [20_000.0 if i == 7 else 900.0 for i in range(30)]
    faulty = rows.set_column(1, "rent", [rents])
    for name, table in (("good", rows), ("faulty", faulty), ("short", rows.drop_columns("rent"))):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    model = tmp_path / "model.json"
    model.write_text(json.dumps({"architecture": {"name": "logistic"}, "task": OWN}))
    command = [sys.executable, "-m", "app.cli", "model", "check", str(model)]
    for name, code, words in (
        ("good", 0, "all 30 rows of good.parquet can be encoded"),
        ("faulty", 1, "record shop-7, column 'rent': the task cannot read it"),
        ("short", 1, "short.parquet has no column 'rent'"),
    ):
        data = ["--data", str(tmp_path / f"{name}.parquet"), "--record-id", "shop"]
        done = subprocess.run([*command, *data], capture_output=True, text=True, check=False)
        assert words in done.stdout, done.stderr
        assert "gradient_clipping     works" in done.stdout
        assert done.returncode == code
