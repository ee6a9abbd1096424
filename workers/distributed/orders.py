"""What the leading process tells the others of a run: which network, and what is done with it.

They load the model's definition themselves, as the leading process does. Weights, rows of batches
and these orders come from it, over the processes' own connections.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

import torch

from app.domain.architectures.base import BaseDigest
from app.domain.errors import PlanError
from app.domain.plan import Plan, TrainingKind
from app.planning.mechanisms.catalogue import mechanism_named
from workers.distributed.team import ALONE, Team
from workers.mechanisms.frame import ReferenceFrame
from workers.networks.base import digest_of
from workers.noise.generators import NoiseSource


class Order(StrEnum):
    """What is done next."""

    REHEARSE = "rehearse"
    BEGIN = "begin"
    LOAD = "load"
    TRAIN = "train"
    UNLEARN = "unlearn"
    FINE_TUNE = "fine_tune"
    GATHER = "gather"
    COUNT = "count"
    END = "end"


@dataclass(frozen=True)
class Beginning:
    """What a run is about.

    Attributes:
        plan: as JSON.
        base: the digest of the network's public tensors, as JSON.
        records: how many are learned from.
        held_out: how many are not, and may end the fine-tuning.
    """

    model_id: str
    plan: dict[str, Any]
    base: dict[str, Any] | None
    records: int
    held_out: int

    @classmethod
    def of(
        cls,
        model_id: str,
        plan: Plan,
        *,
        base: BaseDigest | None,
        records: int,
        held_out: int,
    ) -> Self:
        """Return what the leading process knows of its run."""
        return cls(
            model_id,
            plan.to_json(),
            None if base is None else base.to_json(),
            records,
            held_out,
        )

    def fields(self) -> dict[str, Any]:
        """Return it as an order's fields."""
        return asdict(self)


def require_same_frame(team: Team, frame: ReferenceFrame | None) -> None:
    """Check that the noisy phase's coordinates are the leading process's, if it has any.

    Raises:
        PlanError: the network's factory draws other numbers under the same seeds here.
    """
    own = torch.frombuffer(bytearray(_digest(frame)), dtype=torch.uint8)
    leading = own.clone()
    team.align_(leading)
    if not torch.equal(leading, own):
        raise PlanError("the network's initialisation differs between processes of one run")


def _digest(frame: ReferenceFrame | None) -> bytes:
    """Return the SHA-256 of a frame's scales and centres."""
    document: object = None
    if frame is not None:
        centre = {name: digest_of(tensor) for name, tensor in frame.centre.items()}
        document = [frame.to_json(), centre]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()


def assembled(
    team: Team,
    *,
    model_id: str,
    plan: Plan,
    base: BaseDigest | None,
    records: int,
    held_out: int,
) -> Team:
    """Return the processes that divide a run, once they know what it is about.

    A run that is not divided is the leading process's alone.
    """
    if team.devices == 1 or not is_divided(plan):
        return ALONE
    beginning = Beginning.of(model_id, plan, base=base, records=records, held_out=held_out)
    team.announce(Order.BEGIN, **beginning.fields())
    return team


def divided_among(team: Team, plan: Mapping[str, Any]) -> int:
    """Return how many processes divide a plan's work, the plan as JSON."""
    return team.devices if is_divided(Plan.from_json(plan)) else 1


def is_divided(plan: Plan) -> bool:
    """Return whether the work of a plan is divided where there are several devices."""
    return mechanism_named(plan.mechanism).divides and plan.training is TrainingKind.RECIPE


def counted(team: Team, noise: NoiseSource) -> dict[float, int]:
    """Return how many numbers all processes drew, by standard deviation; see ``Team.counted``."""
    team.announce(Order.COUNT)
    return team.counted(noise)
