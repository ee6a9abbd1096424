"""The part of a process that does not lead a run: what the leading one announces, on its own rows.

It is as sealed as the leading process: its weights are in a ``Sealed``, it writes no file from
before it gets the first row until its end, and what fails names neither weights nor records. It has
an odometer of its own, so it takes part in fine-tuning only where it has seen the target met.
"""

from collections.abc import Callable

import numpy as np
from torch import nn

from app.domain.architectures.base import BaseDigest
from app.domain.errors import SealedStateError
from app.domain.plan import Plan
from app.failpoints import halfway, reach
from app.planning.mechanisms.catalogue import mechanism_named
from app.services import Services
from workers.data.backbone import starting
from workers.data.loading import RunData, load_model
from workers.distributed.elsewhere import Elsewhere
from workers.distributed.orders import Beginning, Order, require_same_frame
from workers.distributed.team import Processes
from workers.mechanisms.catalogue import rule_of
from workers.networks.base import pinned
from workers.noise.generators import SecureNoise
from workers.rehearsal.rehearse import rehearse
from workers.seal.certified import Certified
from workers.seal.ram_only import ram_only
from workers.seal.sealed import Sealed
from workers.training.device import choose_device
from workers.training.lineage import Lineage, lineage_of


def follow(services: Services, team: Processes) -> None:
    """Take part in a run until the leading process says that it is over.

    Raises:
        ProcessLostError: another process ended.
        PlanError: the network here is not the leading process's.
    """
    while (order := team.heard()).pop("do") == Order.REHEARSE:
        model = load_model(services, order["model_id"])
        rehearse(
            starting(model.backbone, model.factory(services.settings, in_full=True)),
            model.task,
            model.form,
            device=choose_device(),
            team=team,
        ).destroy()
    if order:
        part = _Part(services, team, Beginning(**order))
        reach("follower_begun")
        with ram_only():
            part.play()


class _Part:
    """A process's part in one run."""

    def __init__(self, services: Services, team: Processes, beginning: Beginning) -> None:
        self._team = team
        self._plan = Plan.from_json(beginning.plan)
        self._model = load_model(services, beginning.model_id)
        factory = self._model.factory(services.settings)
        base = None if beginning.base is None else BaseDigest.from_json(beginning.base)
        self._fresh: Callable[[], nn.Module] = pinned(starting(self._model.backbone, factory), base)
        records = Elsewhere(beginning.records, self._model.form)
        self._held_out = Elsewhere(beginning.held_out, self._model.form)
        nothing = Elsewhere(0, self._model.form)
        data = RunData(records, self._held_out, nothing, self._plan, np.empty(0, dtype=np.int64))
        self._records = records
        self._lineage: Lineage = lineage_of(self._plan, self._model, data, factory)
        require_same_frame(team, self._lineage.frame)
        self._training = halfway("follower_training", lambda *_: None)
        self._noisy = halfway("follower_noise", lambda *_: None)
        self._tuning = halfway("follower_fine_tune", lambda *_: None)
        self._gathering = halfway("follower_gathering", lambda *_: None)

    def play(self) -> None:
        """Do what the leading process announces, until it says that the run is over."""
        noise = SecureNoise(choose_device())
        sealed = Sealed(
            self._fresh,
            epsilon=self._plan.epsilon,
            delta=self._plan.delta,
            device=choose_device(),
            dtype=self._lineage.dtype,
            task=self._model.task,
            team=self._team,
        )
        certified: Certified | None = None
        try:
            while (order := self._team.heard())["do"] != Order.END:
                if order["do"] == Order.LOAD:
                    sealed.load(None)
                elif order["do"] == Order.TRAIN:
                    self._lineage.train(sealed, noise, self._training)
                    if mechanism_named(self._plan.mechanism).trains_anew:
                        sealed.retrained()
                        certified = sealed.open()
                elif order["do"] == Order.UNLEARN:
                    sealed.unlearn(
                        rule_of(self._plan),
                        self._lineage.feed,
                        frame=self._lineage.frame,
                        noise=noise,
                        on_progress=self._noisy,
                    )
                    certified = sealed.open()
                elif order["do"] == Order.COUNT:
                    self._team.counted(noise)
                elif certified is None:
                    raise SealedStateError("nothing has met its target yet")
                elif order["do"] == Order.FINE_TUNE:
                    certified.fine_tune(
                        self._records,
                        self._model.recipe,
                        epochs=order["epochs"],
                        held_out=self._held_out,
                        on_progress=self._tuning,
                    )
                elif order["do"] == Order.GATHER:
                    self._gathering(1, 1)
                    certified.gather()
        finally:
            noise.destroy()
            sealed.destroy()
