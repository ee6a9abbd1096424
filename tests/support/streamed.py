"""Workers that may not use enough memory for a run's records, so that they are streamed."""

import os
from contextlib import contextmanager

import numpy as np

from app.datasets.files import record_table, to_parquet
from app.datasets.service import define_dataset
from app.domain.plan import Plan
from app.domain.schema import FeatureSchema
from app.ledger import repository
from app.registry import repository as registry
from app.services import open_services
from app.settings import Settings
from workers.data.loading import load_model
from workers.data.run_records import footprint_of
from workers.memory import VARIABLE

FEATURES = 200
RECORDS = 3000


def wide_parquet(first, end):
    """Return records of 200 features; a number stands for the same record everywhere."""
    numbers = np.arange(first, end)
    features = [np.random.default_rng(i).normal(size=FEATURES).astype(np.float32) for i in numbers]
    return to_parquet(
        record_table(
            record_ids=[f"record-{i}" for i in numbers],
            subject_ids=[f"subject-{i // 4}" for i in numbers],
            labels=[int(each[0] + each[1] > 0) for each in features],
            features=np.stack(features),
        )
    )


def too_little(made):
    """Return how many bytes to allow so that the run with this footprint streams."""
    allowed = 2 * made.in_memory().total
    while made.fits(allowed):
        allowed -= allowed // 50
    return allowed


def push_wide(services):
    """Define the dataset ``wide`` and push its records in shards of unequal sizes."""
    schema = FeatureSchema(shape=(FEATURES,), dtype="float32", offset=0.0, scale=1.0, classes=2)
    with services.database.transaction() as session:
        define_dataset(session, name="wide", schema=schema)
    for first, end in [(0, 1), (1, 250), *((at, at + 250) for at in range(250, RECORDS, 250))]:
        services.records.push("wide", wide_parquet(first, end))


def footprint(services, name="model"):
    """Return the footprint of a model's run that waits."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        plan = Plan.from_json(repository.active_run(session, model.id).plan)
        model_id = model.id
    spec = load_model(services, model_id)
    network = spec.factory(services.settings)()
    dimension = sum(each.numel() for each in network.parameters() if each.requires_grad)
    return footprint_of(services, spec, plan, dimension)


@contextmanager
def confined(services, allowed):
    """Yield the same service, whose runs may use ``allowed`` bytes."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(allowed)
    try:
        smaller = open_services(Settings(**services.settings.model_dump(exclude={"worker_memory"})))
        try:
            yield smaller
        finally:
            smaller.database.dispose()
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before
