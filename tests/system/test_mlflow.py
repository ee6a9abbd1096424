"""A real MLflow server holds one version of a model, wherever its change is interrupted."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from app.delivery.publishing.mlflow import MODEL_TAG, Mlflow
from app.delivery.publishing.mlflow import MlflowServer as Client
from app.delivery.publishing.target import Subject, Target
from app.domain.errors import PlaceTakenError
from app.domain.release import WEIGHTS
from tests.support.mlflow_server import MlflowServer
from tests.support.targets import (
    OTHER,
    SUBJECT,
    Seen,
    check_interrupted_everywhere,
    files_of,
    hold,
    release,
)

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow") / "server")
    yield server
    server.stop()


def _target(mlflow: MlflowServer, prefix: str) -> Mlflow:
    return Mlflow(Client(mlflow.url), prefix=prefix, experiment=prefix)


def test_interrupted_anywhere_it_ends_the_same(mlflow: MlflowServer) -> None:
    def fresh() -> tuple[Target, Callable[[], Seen]]:
        prefix = uuid4().hex

        def seen() -> Seen:
            found = mlflow.files()
            versions = mlflow.versions(prefix + SUBJECT.name)
            assert len(versions) == (1 if found else 0)
            assert all(len(paths) == 1 for paths in found.values())
            return {name: paths[0].read_bytes() for name, paths in found.items()}

        return _target(mlflow, prefix), seen

    check_interrupted_everywhere(fresh, all_ends=False)


def test_what_was_changed_behind_our_back_is_placed_again(mlflow: MlflowServer) -> None:
    target = _target(mlflow, uuid4().hex)
    hold(target, release(1))
    for false in (None, b"x" * release(1).size_bytes):
        (weights,) = mlflow.files()[WEIGHTS]
        weights.unlink() if false is None else weights.write_bytes(false)
        hold(target, release(1))
        found = {name: paths[0].read_bytes() for name, paths in mlflow.files().items()}
        assert found == files_of(release(1))
    assert "weights" not in hold(target, release(1))  # what is whole is not sent again
    hold(target, None)
    assert mlflow.files() == {}


def test_a_registered_model_of_others_is_not_touched(mlflow: MlflowServer) -> None:
    prefix = uuid4().hex
    name = prefix + SUBJECT.name
    client = Client(mlflow.url)
    client.create_registered_model(name, {})
    with pytest.raises(PlaceTakenError, match="not ours"):
        hold(_target(mlflow, prefix), release(1))
    assert hold(_target(mlflow, prefix), None) == ["switched"]
    assert mlflow.versions(name) == []
    other = uuid4().hex
    hold(_target(mlflow, other), release(1), OTHER)
    with pytest.raises(PlaceTakenError, match="not ours"):
        hold(_target(mlflow, other), release(2), Subject("model_3", OTHER.name))
    hold(_target(mlflow, other), None, OTHER)


def test_what_was_placed_goes_when_others_take_the_name(mlflow: MlflowServer) -> None:
    prefix = uuid4().hex
    name, client = prefix + SUBJECT.name, Client(mlflow.url)
    hold(_target(mlflow, prefix), release(1))
    client._call("DELETE", "registered-models/delete", json={"name": name})
    client.create_registered_model(name, {MODEL_TAG: OTHER.id})
    with pytest.raises(PlaceTakenError, match="not ours"):
        hold(_target(mlflow, prefix), release(2))
    assert mlflow.files() == {}
    assert client.registered_model(name) is not None
