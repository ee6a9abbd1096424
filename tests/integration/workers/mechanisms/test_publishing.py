"""A run that drew less noise than its certificate would claim publishes nothing."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan, TrainingKind
from app.domain.states import Basis
from app.evidence.certificates.statement import CertifyingPhase
from app.services import Services
from tests.support.digits import DATASET, digits_parquet, head
from workers import run
from workers.mechanisms import lineage
from workers.mechanisms.publishing import require_drawn
from workers.noise.generators import SecureNoise

SIZE = 65
RECIPE = {
    "learning_rate": 1.0,
    "weight_decay": 0.01,
    "smoothness": 0.25,
    "lipschitz": 1.0,
    "batch_size": 10,
    "batches": 10,
    "neighbours": "zero_out",
    "radius": None,
    "dimension": SIZE,
}
TRAINED: list[dict[str, Any]] = [{"steps": 40, "noise_std": 0.0}, {"release": 0.5}]
FORGOTTEN = [*TRAINED, {"forget": [[4, 1]]}, {"steps": 3, "noise_std": 0.1}, {"release": 0.2}]


def phase(
    mechanism: str, parameters: Mapping[str, Any], settings: Mapping[str, float] | None = None
) -> CertifyingPhase:
    plan = Plan(
        mechanism=mechanism,
        parameters=parameters,
        epsilon=1.0,
        delta=1e-5,
        budget_epochs=1.0,
        predicted={},
        settings=settings or {},
        training=TrainingKind.RECIPE if settings is None else TrainingKind.PRIVATE,
    )
    return CertifyingPhase(
        plan=plan, parameters=parameters, frame=None, tensors=("weight",), noise=None
    )


def history(events: list[dict[str, Any]]) -> dict[str, Any]:
    return {"history": {"recipe": RECIPE, "events": events}}


def check(of_run: CertifyingPhase, drawn: Mapping[float, int], *, trains: bool = False) -> None:
    basis = Basis.CERTIFIED_RELEASE if trains else Basis.UNLEARNED
    require_drawn(of_run, drawn, basis=basis, trains=trains, size=SIZE)


@pytest.mark.parametrize(
    ("drawn", "enough"),
    [
        ({0.1: 3 * SIZE, 0.2: SIZE}, True),
        ({0.2: 4 * SIZE}, True),
        ({0.1: 3 * SIZE - 1, 0.2: SIZE}, False),
        ({0.1: 4 * SIZE}, False),
        ({0.1: 3 * SIZE, 0.199: SIZE}, False),
        ({}, False),
    ],
    ids=["as claimed", "louder", "one too few", "all quiet", "a little quiet", "none"],
)
def test_each_step_and_release_of_the_last_run_was_drawn_for(
    drawn: dict[float, int], enough: bool
) -> None:
    claimed = phase("tracked_release", history(FORGOTTEN))
    if enough:
        check(claimed, drawn)
        return
    with pytest.raises(TargetNotMetError):
        check(claimed, drawn)


def test_a_run_that_claims_no_new_noise_needs_none() -> None:
    check(phase("tracked_release", history([*TRAINED, {"forget": [[4, 1]]}, {"release": 0.0}])), {})


@pytest.mark.parametrize("mechanism", ["dp_sgd", "retraining"])
def test_private_training_was_noisy_even_where_its_own_certificate_does_not_say_so(
    mechanism: str,
) -> None:
    settings = {"noise_multiplier": 2.0, "gradient_clip": 0.5, "private_steps": 7}
    trained = phase(mechanism, {}, settings)
    check(trained, {1.0: 7 * SIZE}, trains=True)
    check(trained, {}, trains=False)
    with pytest.raises(TargetNotMetError):
        check(trained, {1.0: 6 * SIZE}, trains=True)


class _Silent(SecureNoise):
    """Counts what it should have added, half of it."""

    @property
    def drawn(self) -> Mapping[float, int]:
        return {noise_std: count // 2 for noise_std, count in super().drawn.items()}


def test_the_service_publishes_nothing_of_a_run_whose_source_was_silent(
    api: TestClient,
    services: Services,
    work: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lineage, "SecureNoise", _Silent)
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())
    api.post("/v1/models", json=head("silent", mechanism="tracked_release"))
    work()
    assert api.get("/v1/models/silent/certified").status_code == 404
    (failed,) = api.get("/v1/runs?model=silent").json()["items"]
    assert failed["state"] == "failed"
    assert "drew less noise" in failed["failure_reason"]


def test_the_worker_refuses_a_bundle_that_the_offline_verifier_refuses(
    api: TestClient, work: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own count differs from what the parameters say: the verifier finds that, too."""
    monkeypatch.setattr(run, "require_drawn", lambda *_, **__: None)
    monkeypatch.setattr(lineage, "SecureNoise", _Silent)
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())
    api.post("/v1/models", json=head("contradicted", mechanism="tracked_release"))
    work()
    assert api.get("/v1/models/contradicted/certified").status_code == 404
    (failed,) = api.get("/v1/runs?model=contradicted").json()["items"]
    assert "count of noise" in failed["failure_reason"]
