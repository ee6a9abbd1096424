"""Workers that may not use enough memory for a run's records, so that they are streamed."""

import os
from contextlib import contextmanager

import numpy as np

from app.domain.plan import Plan
from app.ledger import repository
from app.registry import repository as registry
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import define_dataset
from app.runtime.settings import Settings
from app.services import open_services
from demo.tables import record_table
from tests.support.arrays import array_schema, array_task
from workers.data.loading import load_model
from workers.data.memory import VARIABLE
from workers.data.run_records import footprint_of

FEATURES = 200
RECORDS = 3000
TASK = array_task(FEATURES)


def wide_parquet(first, end, *, features=None, prefix=""):
    """Return records of 200 features; a number stands for the same record everywhere.

    Args:
        first, end: the numbers of the first record, and of the one after the last.
        features: float32 [RECORDS, 200]; by default those that the number alone decides.
        prefix: of ids.
    """
    numbers = np.arange(first, end)
    if features is None:
        chosen = np.stack([np.random.default_rng(i).normal(size=FEATURES) for i in numbers])
    else:
        chosen = features[first:end]
    return to_parquet(
        record_table(
            record_ids=[f"{prefix}record-{i}" for i in numbers],
            subject_ids=[f"{prefix}subject-{i // 4}" for i in numbers],
            labels=[int(each[0] + each[1] > 0) for each in chosen],
            features=chosen.astype(np.float32),
        )
    )


def too_little(made):
    """Return how many bytes to allow so that the run with this footprint streams."""
    allowed = 2 * made.in_memory().total
    while made.fits(allowed):
        allowed -= allowed // 50
    return allowed


def push_wide(services, **made):
    """Define the dataset ``wide`` and push its records in shards of unequal sizes.

    ``made`` says which records, as for ``wide_parquet``.
    """
    with services.database.transaction() as session:
        define_dataset(session, name="wide", schema=array_schema(FEATURES))
    for first, end in [(0, 1), (1, 250), *((at, at + 250) for at in range(250, RECORDS, 250))]:
        services.records.push("wide", wide_parquet(first, end, **made))


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
