"""``python -m workers recompute MODEL``: computes an exact head again, from the records alone.

Neither its weights nor its stored sums are read, and features of a backbone are made anew: what
comes out is what a service would release that never saw the forgotten records. On one machine, with
the same versions of the libraries, it is the released file byte for byte.
"""

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, replace

import numpy as np
import safetensors.numpy
import torch

from app.domain.errors import ConflictError, ExpungeError, NotReadyError
from app.domain.plan import Plan, TrainingKind
from app.ledger import repository
from app.ledger.selections import Selection
from app.registry import repository as registry
from app.registry.training_set import TrainingSet
from app.runtime.locations import embedded_postgres
from app.runtime.settings import Settings
from app.services import Services, open_services
from workers.data.backbone import publishable
from workers.data.loading import load_model, readers_for
from workers.data.run_records import selected
from workers.data.shards import read_shards
from workers.mechanisms.catalogue import solver_of
from workers.training.networks.network import Network


@dataclass(frozen=True)
class Recomputed:
    """A version and what was computed for it again.

    Attributes:
        version: its number.
        released: SHA-256 of the released weights, in hex.
        computed: of those that were computed now.
        records: how many they were computed from.
    """

    version: int
    released: str
    computed: str
    records: int

    @property
    def is_equal(self) -> bool:
        """Whether they are the same file."""
        return self.computed == self.released


def recompute(services: Services, name: str) -> Recomputed:
    """Compute the newest version of a model again.

    Raises:
        NotFoundError: the model does not exist.
        NotReadyError: it has no version yet.
        ConflictError: its records do not determine its weights, or it waits to forget some; or the
            features of its backbone are not of one record alone.
    """
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        head = registry.head_version(session, model)
        if head is None:
            raise NotReadyError(f"model {name!r} has no version yet")
        plan = Plan.from_json(repository.run(session, head.run_id).plan)
        if plan.training is not TrainingKind.EXACT:
            raise ConflictError(
                f"version {head.number} of {name!r} was made by {plan.mechanism}; its weights "
                "are no function of the records alone: nothing can be computed again"
            )
        records = TrainingSet(session, model, as_of=head.covers_epoch).records
        retained = records.retained
        if not np.array_equal(retained, TrainingSet(session, model).records.retained):
            raise ConflictError(
                f"version {head.number} of {name!r} learned from records that are to be forgotten: "
                "wait for the next"
            )
        number, sha256, model_id = head.number, head.sha256, model.id
    spec = load_model(services, model_id)
    selection = Selection(retained, held_out=retained[:0], plan=plan)
    shards = read_shards(services, spec.dataset_id, readers_for(services, spec).anew)
    data = selected(spec, selection, shards)
    network = Network(
        spec.factory(services.settings), device=torch.device("cpu"), dtype=torch.float64
    )
    solver_of(plan)(network, data, spec.description.task)
    content = safetensors.numpy.save(
        publishable(spec.backbone, network.tensors()),
        metadata=replace(spec.description, version=number).to_metadata(),
    )
    computed = hashlib.sha256(content).hexdigest()
    return Recomputed(number, released=sha256, computed=computed, records=len(retained))


def main() -> None:
    """Compute the model that the command line names again, and print what comes out as JSON."""
    settings = Settings()
    name = sys.argv[2]
    try:
        with embedded_postgres(settings):
            services = open_services(settings)
            try:
                found = recompute(services, name)
            finally:
                services.database.dispose()
    except ExpungeError as error:
        sys.exit(f"error: {error}")
    print(json.dumps(asdict(found) | {"equal": found.is_equal}))  # noqa: T201
