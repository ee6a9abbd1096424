"""A worker killed at random points of a series of requests leaves what an undisturbed one leaves.

Two models that are equal down to their batches and their held-out records, on one dataset: every
request reaches both, and only runs of one of them are killed. All that is not noise must be equal.
"""

import itertools
import json
import math
import random
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import psutil
import pytest
import safetensors.numpy
from sqlalchemy import create_engine, select, update

from app.accounting.histories.history import History
from app.domain.states import RunState
from app.evidence.certificates.verification import verify
from app.ledger.tables import RunRow
from app.registry.repository import model_named
from app.registry.shapes import shape_of
from app.registry.tables import ModelRow
from tests.support.digits import DATASET, digits_parquet, head
from tests.support.emptying import unguarded
from tests.support.patience import PATIENCE_S, until
from tests.support.service import kill, running

pytestmark = pytest.mark.nightly

CALM, DISTURBED = "calm", "disturbed"
REQUESTS = 6
# How often runs are killed in the course of the series: two of them once, and one twice.
KILLS = (1, 1, 2)
# Some tenths of a second of each, and enough to meet the target with this little noise.
STEPS = {"tracked_release": 2000, "projected_noisy_sgd": 700}
# Noise at each step must be enough for all steps' rounding to stay small beside it.
SPREAD = {"tracked_release": 1e-4, "projected_noisy_sgd": 5e-4}
EQUAL = ("basis", "target", "guarantee", "mechanism", "accountant", "assumptions", "forgotten")
ACTIVE = (RunState.LEASED, RunState.RUNNING)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("series") / "data") as service:
        yield service


@pytest.fixture
def database(service):
    with service.database() as database:
        yield database


@dataclass
class Outcome:
    """What one model shows after one request."""

    predicate: dict
    tracking: dict
    counts: tuple[int, ...]
    weights: np.ndarray = field(repr=False)

    @property
    def evaluation(self):
        return self.predicate["evaluation"]


def noise_of(mechanism, contraction):
    """Return the noise that leaves ``SPREAD`` per coordinate in a release."""
    at_each_step = mechanism == "projected_noisy_sgd"
    spread = SPREAD[mechanism]
    return spread * math.sqrt(1 - contraction**2) if at_each_step else spread


def definition(name, dataset, mechanism):
    decay, smoothness = 0.01, 0.5
    rate = 1 / (smoothness + decay)
    noise_std = noise_of(mechanism, 1 - rate * decay)
    parameters = {"steps": STEPS[mechanism], "noise_std": noise_std}
    return {**head(name, mechanism=mechanism, parameters=parameters), "dataset": dataset}


def define_equal_models(service, client, database, mechanism):
    """Define two models that are trained on the same batches of the same records."""
    client.define_dataset(mechanism, features=DATASET["features"], classes=10)
    client.push_records(mechanism, digits_parquet(600))
    names = [f"{mechanism}-{name}" for name in (CALM, DISTURBED)]
    worker = service.part("worker")
    worker.suspend()
    try:
        for name in names:
            client.define_model(definition(name, mechanism, mechanism))
        with database.transaction() as session:
            salt = model_named(session, names[0]).split_salt
        owner = create_engine(service.servers.migration_url)
        with owner.begin() as connection, unguarded(connection):
            connection.execute(
                update(ModelRow).where(ModelRow.name == names[1]).values(split_salt=salt)
            )
        owner.dispose()
    finally:
        worker.resume()
    for name in names:
        assert (
            client.wait_for_model(name, timeout_s=PATIENCE_S)["latest_run"]["state"] == "published"
        )
    return names


def run_of(database, model_name):
    """Return the model's newest run."""
    with database.transaction() as session:
        model = model_named(session, model_name)
        query = select(RunRow).where(RunRow.model_id == model.id)
        return session.scalars(query.order_by(RunRow.created_at.desc()).limit(1)).one()


def kill_in_the_middle(service, database, model_name, *, earlier, attempt, rng):
    """Kill the process that carries out the model's next run; say whether it was in the middle.

    The moment is drawn from the length of the ``earlier`` run. The process is frozen first: only
    one that still holds the run is killed, never another's.
    """
    length_s = (earlier.finished_at - earlier.started_at).total_seconds()

    def begun():
        run = run_of(database, model_name)
        held = run.id != earlier.id and run.attempt >= attempt
        return held and (run.state in ACTIVE or run.state == RunState.PUBLISHED)

    until(begun)
    time.sleep(rng.uniform(0, length_s))
    worker = service.part("worker")
    with frozen(worker.children(recursive=True)) as children:
        run = run_of(database, model_name)
        if not children or run.state not in ACTIVE or run.attempt != attempt:
            return False
        kill([worker, *children] if rng.random() < 0.25 else children)
    return True


@contextmanager
def frozen(processes):
    """Stop processes for a moment."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield processes
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def forget(service, client, database, names, *, subject, kills, rng):
    """Have one more subject forgotten; return the request, and how many kills interrupted a run."""
    earlier = run_of(database, names[1])
    request = client.forget(client.model(names[0])["dataset"], subject_ids=[subject])
    landed = 0
    for _ in range(kills):
        landed += kill_in_the_middle(
            service,
            database,
            names[1],
            earlier=earlier,
            attempt=landed + 1,
            rng=rng,
        )
    ended = until(
        lambda: (
            (request_now := client.request(request["id"]))["state"] in ("completed", "failed")
            and request_now
        )
    )
    assert ended["state"] == "completed", ended
    return ended, landed


def outcome_of(client, database, name, request, directory):
    """Download, verify offline, and read what the ledger remembers."""
    trusted = client.trusted_keys()
    weights = client.download(name, directory, trusted=trusted).weights
    certificates = {c["model"]: c["bundle"] for c in client.certificates_of(request["id"])}
    predicate = verify(
        bundle=json.dumps(certificates[name]).encode(),
        weights=weights,
        trusted=trusted,
    )
    with database.transaction() as session:
        model = model_named(session, name)
        shape = shape_of(session, model)
        counts = (shape.retained, shape.trained_on, shape.forgotten, shape.newly_forgotten)
        tracking = model.tracking
    (tensor,) = safetensors.numpy.load(weights.read_bytes()).values()
    return Outcome(predicate=predicate, tracking=tracking, counts=counts, weights=tensor)


def largest_distance(mechanism, history, size):
    """Return how far noise alone can drive two equal heads apart, but for one time in 10^7.

    Each step brings them closer by c and adds N(0, 2 noise_std^2 I), so that the distance is at
    most s sqrt(size) in the mean, s = sqrt(2) SPREAD, and a function of Gaussians with Lipschitz
    constant s: it is 6 s above that with a probability below exp(-18). The noise of a release is
    the same with c^K for c, K its steps.
    """
    rate = history.recipe.contraction
    spread = noise_of(mechanism, rate) / math.sqrt(1 - rate ** (2 * steps_per_noise(mechanism)))
    return math.sqrt(2) * spread * (math.sqrt(size) + 6)


def steps_per_noise(mechanism):
    return 1 if mechanism == "projected_noisy_sgd" else STEPS[mechanism]


def assert_equal_but_for_noise(calm, disturbed, mechanism, why):
    for field_name in EQUAL:
        assert calm.predicate[field_name] == disturbed.predicate[field_name], (field_name, why)
    assert calm.predicate["model"]["version"] == disturbed.predicate["model"]["version"], why
    assert calm.tracking == disturbed.tracking, why
    assert calm.counts == disturbed.counts, why
    held_out = calm.evaluation["held_out_records"]
    assert held_out == disturbed.evaluation["held_out_records"] > 0, why

    history = History.from_json(calm.tracking["history"])
    distance = largest_distance(mechanism, history, calm.weights.size)
    assert np.linalg.norm(calm.weights - disturbed.weights) < distance, why
    # The mean loss is sqrt(2)-Lipschitz in the head, for features of norm at most 1.
    losses = [outcome.evaluation["held_out_loss"] for outcome in (calm, disturbed)]
    assert abs(losses[0] - losses[1]) < math.sqrt(2) * distance + 1e-5, why
    # Two records whose best two logits are closer than the noise may fall on either side.
    accuracies = [outcome.evaluation["metrics"]["accuracy"] for outcome in (calm, disturbed)]
    assert abs(accuracies[0] - accuracies[1]) <= 2 / held_out + 1e-9, why
    return distance


@pytest.mark.parametrize("mechanism", ["tracked_release", "projected_noisy_sgd"])
def test_a_series_with_killed_workers_is_an_undisturbed_one_but_for_noise(
    mechanism, service, client, database, tmp_path
):
    seed = random.SystemRandom().randrange(2**32)
    rng, why = random.Random(seed), f"seed {seed}"
    names = define_equal_models(service, client, database, mechanism)
    planned = dict(zip(rng.sample(range(REQUESTS), len(KILLS)), KILLS, strict=True))
    before, landed, missed = None, 0, 0
    for number in itertools.count():
        if number >= REQUESTS and landed >= 2:
            break
        assert number < 5 * REQUESTS, f"hardly any kill hits a run: {why}"
        aimed = min(2, planned.get(number, 0) + missed)
        request, kills = forget(
            service,
            client,
            database,
            names,
            subject=f"subject-{number}",
            kills=aimed,
            rng=rng,
        )
        landed, missed = landed + kills, aimed - kills
        attempts = {o["model"]: client.run(o["run"])["attempt"] for o in request["obligations"]}
        assert attempts == {names[0]: 1, names[1]: 1 + kills}, why
        calm, disturbed = (outcome_of(client, database, n, request, tmp_path) for n in names)
        distance = assert_equal_but_for_noise(calm, disturbed, mechanism, why)
        assert calm.predicate["forgotten"]["requests"] == number + 1
        if before is not None:
            # What is compared is sharp enough to see one request more or less.
            assert np.linalg.norm(calm.weights - before.weights) > 2 * distance, why
        before = calm
