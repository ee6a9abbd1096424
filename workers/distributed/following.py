"""The part of a process that does not lead a run: the same as the leading one's, on its own rows.

It is as sealed as the leading process: its weights are in a ``Sealed``, it writes no file from
before it gets the first row until its end, and what fails names neither weights nor records. It has
an odometer of its own, so it takes part in fine-tuning only where it has seen the target met.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from app.domain.architectures import BaseDigest
from app.domain.errors import SealedStateError
from app.domain.plan import Plan
from app.planning.mechanisms.catalogue import mechanism_named
from app.runtime.failpoints import halfway, reach
from app.services import Services
from workers.data.backbone import starting
from workers.data.loading import RunData, load_model
from workers.distributed.processes import Processes
from workers.mechanisms.lineage import fine_tune, lineage_of, meet_target, sealing
from workers.mechanisms.rehearsal.rehearse import rehearse_model
from workers.seal.ram_only import ram_only
from workers.training import examples
from workers.training.forms import InputForm
from workers.training.networks.held import pinned, start_of
from workers.training.orders import Beginning, Order, require_same_frame
from workers.training.tasks.task import Batch


@dataclass(frozen=True)
class Elsewhere(examples.Records):
    """Records that only the leading process reads: how many they are, and what they look like.

    Here come this process's rows of every batch.
    """

    records: int
    form: InputForm

    def __len__(self) -> int:
        return self.records

    def epoch(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:  # noqa: ARG002
        """Yield nothing: ``Team.deal`` yields what the leading process sends."""
        return iter(())

    forever = in_order = epoch

    def cycle(
        self,
        order: examples.Order,  # noqa: ARG002
        sizes: Sequence[int],  # noqa: ARG002
        first: int,  # noqa: ARG002
        *,
        device: torch.device,  # noqa: ARG002
    ) -> Iterator[Batch]:
        """Refuse.

        Raises:
            SealedStateError: always: fixed batches are not divided.
        """
        raise SealedStateError("a model with fixed batches is trained by one process")


def follow(services: Services, team: Processes) -> None:
    """Take part in a run until the leading process says that it is over.

    Raises:
        ProcessLostError: another process ended.
        PlanError: the network here is not the leading process's.
    """
    while (order := team.heard()).pop("do") == Order.REHEARSE:
        model = load_model(services, order["model_id"])
        rehearse_model(model, services.settings, team=team).destroy()
    if order:
        _take_part(services, team, Beginning(**order))


def _take_part(services: Services, team: Processes, beginning: Beginning) -> None:
    plan = Plan.from_json(beginning.plan)
    model = load_model(services, beginning.model_id)
    factory = model.factory(services.settings)
    base = None if beginning.base is None else BaseDigest.from_json(beginning.base)
    data = RunData(
        Elsewhere(beginning.records, model.form),
        Elsewhere(beginning.held_out, model.form),
        plan,
        np.empty(0, dtype=np.int64),
    )
    lineage = lineage_of(plan, model, data, factory)
    require_same_frame(team, lineage.frame)
    fresh = starting(model.backbone, factory)
    fresh = pinned(fresh, base, start_of(fresh))
    training, noisy, tuning, gathering = (
        halfway(f"follower_{point}", lambda *_: None)
        for point in ("training", "noise", "fine_tune", "gathering")
    )
    with sealing(lineage, plan, model, fresh, team) as (sealed, noise):
        reach("follower_begun")
        with ram_only(plan.training):
            team.heard()  # the leading process has its weights and records
            trains = beginning.trains
            if not trains:
                sealed.load(None)
            certified = meet_target(
                lineage, plan, sealed, noise, trains=trains, training=training, noisy=noisy
            )
            if mechanism_named(plan.mechanism).fine_tunes:
                fine_tune(certified, model, data, tuning)
            gathering(1, 1)
            certified.gather()
            team.counted(noise)
            team.heard()  # the run is over
