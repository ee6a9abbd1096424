"""What is wrong with a table, a task or a network is said before anything is sent."""

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import httpx
import pyarrow as pa
import pytest
import torch
from torch import nn

import expunge
from app.domain.errors import InvalidInputError, RunFailedError, TableError
from app.domain.tasks import catalogue
from app.runtime.outgoing import Retry
from expunge.registration import Registered, architecture_of, put_into
from workers.training.networks.architectures import build

TABLE = pa.table(
    {
        "row": ["r1", "r2", "r3"],
        "fee": [1.5, 2.5, 3.5],
        "plan": ["basic", "plus", "plus"],
        "left": [True, False, True],
    }
)


def _sent(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"{request.method} {request.url} was sent")


@pytest.fixture
def service() -> expunge.Client:
    """A service that must not be called."""
    transport = httpx.MockTransport(_sent)
    return expunge.Client("http://service", "key", retry=Retry(attempts=1), transport=transport)


def _register(service: expunge.Client, data: Any = TABLE, **changes: Any) -> Registered:
    given: dict[str, Any] = {
        "model": nn.Linear(1, 2),
        "name": "leaving",
        "inputs": ["fee"],
        "target": "left",
        "record_id": "row",
        **changes,
    }
    return expunge.register(given.pop("model"), data, client=service, **given)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": [[1, 2]]}, "pandas.DataFrame or a pyarrow.Table, not list"),
        ({"inputs": ["rent"]}, "the table has no column 'rent'"),
        ({"target": "plan"}, "name the classes of 'plan'"),
        ({"record_id": "id"}, "the table has no column 'id'"),
        ({"record_id": None}, "record-id"),
        ({"data": TABLE.slice(0, 0)}, "the table has no rows"),
        ({"model": nn.Linear(2, 2)}, "the first layer takes 2"),
        ({"task": "divination"}, "divination|task"),
    ],
)
def test_it_is_refused(service: expunge.Client, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        _register(service, **changes)


def test_two_rows_of_one_id_are_refused(service: expunge.Client) -> None:
    twice = pa.concat_tables([TABLE, TABLE])
    with pytest.raises(TableError, match="row 4"):
        _register(service, twice)


def test_a_good_table_is_sent(service: expunge.Client) -> None:
    """So that the refusals above are not those of the transport."""
    with pytest.raises(AssertionError, match="POST http://service/v1/datasets was sent"):
        _register(service)


def test_one_text_is_no_list_of_ids(service: expunge.Client) -> None:
    model = Registered(
        service, "leaving", "leaving", by_subject=True, trusted=b"", factories=(), timeout_s=1
    )
    with pytest.raises(InvalidInputError, match="a list of ids"):
        model.forget("customer-7")


SPEC = catalogue.from_json(
    {
        "name": "classification",
        "inputs": [{"name": name, "kind": "number"} for name in ("a", "b", "c")],
        "target": {"column": "left", "classes": [False, True]},
    }
)


class Own(nn.Module):
    """A network of somebody's own, whose constructor the service can call."""

    def __init__(self, *, input_shape: tuple[int, ...], classes: int, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(input_shape[0], width)
        self.last = nn.Linear(width, classes)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(features)))


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``Own`` a class of a module that others can import."""
    module = ModuleType("own_network")
    module.Own = Own  # type: ignore[attr-defined]
    monkeypatch.setattr(Own, "__module__", "own_network")
    monkeypatch.setitem(sys.modules, "own_network", module)


def _architecture(model: Any, **options: Any) -> dict[str, Any]:
    return architecture_of(model, options, SPEC, SPEC.schema()).to_json()


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(3, 2), {"name": "logistic", "options": {}}),
        (nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), {"name": "logistic", "options": {}}),
        (
            nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)),
            {"name": "mlp", "options": {"hidden": [5, 7]}},
        ),
    ],
)
def test_a_list_of_layers_is_built_by_the_service_and_filled_again(
    module: nn.Module, expected: dict[str, Any]
) -> None:
    assert _architecture(module) == expected
    architecture = architecture_of(module, None, SPEC, SPEC.schema())
    trained = build(architecture, input_shape=(3,), classes=2, allowed_factories=[]).eval()
    stored = dict(sorted(trained.state_dict().items()))  # as safetensors sorts them
    put_into(module, stored)
    features = torch.randn(9, 3)
    assert torch.equal(module(features), trained(features))


def test_layers_beyond_ten_keep_their_order() -> None:
    widths = [3, *range(4, 11), 2]
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())][:-1]
    module = nn.Sequential(*layers)
    architecture = architecture_of(module, None, SPEC, SPEC.schema())
    trained = build(architecture, input_shape=(3,), classes=2, allowed_factories=[]).eval()
    put_into(module, dict(sorted(trained.state_dict().items())))
    assert torch.equal(module(torch.ones(1, 3)), trained(torch.ones(1, 3)))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), "put a function in a module"),
        (nn.Sequential(nn.Linear(3, 2, bias=False)), "put a function in a module"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU()), "put a function in a module"),
        (nn.Sequential(), "put a function in a module"),
        (nn.Linear(4, 2), "become 3 features, and the first layer takes 4"),
        (nn.Linear(3, 5), "has 2 outputs, and the last layer gives 5"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 2)), "another width"),
    ],
)
def test_a_module_that_the_service_does_not_know_is_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        _architecture(module)


@pytest.mark.usefixtures("importable")
def test_a_class_is_named_by_its_path_and_tried() -> None:
    assert _architecture(Own, width=6) == {
        "name": "custom",
        "factory": "own_network:Own",
        "options": {"width": 6},
    }
    assert _architecture("own_network:Own")["factory"] == "own_network:Own"
    with pytest.raises(RunFailedError, match="height"):
        _architecture(Own, height=6)


@pytest.mark.usefixtures("importable")
def test_an_instance_does_not_say_how_it_was_built() -> None:
    with pytest.raises(InvalidInputError, match="a call that it does not remember"):
        _architecture(Own(input_shape=(3,), classes=2))


def test_what_no_other_process_can_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def local(**_: Any) -> nn.Module:
        return nn.Linear(3, 2)

    with pytest.raises(InvalidInputError, match="cannot be imported by another process"):
        _architecture(local)
    monkeypatch.setattr(Own, "__module__", "__main__")
    with pytest.raises(InvalidInputError, match="Own cannot be imported by another process"):
        _architecture(Own)


def test_options_belong_to_a_factory() -> None:
    with pytest.raises(InvalidInputError, match="options are for a factory"):
        _architecture(nn.Linear(3, 2), width=4)


def test_a_network_with_other_tensors_is_left_as_it_was() -> None:
    module = Own(input_shape=(3,), classes=2)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(InvalidInputError, match="other tensors"):
        put_into(module, {"first.weight": torch.zeros(4, 3)})
    with pytest.raises(InvalidInputError, match=r"last.weight has shape \[2, 4\]"):
        put_into(module, {**before, "last.weight": torch.zeros(3, 4)})
    assert all(torch.equal(module.state_dict()[name], before[name]) for name in before)
