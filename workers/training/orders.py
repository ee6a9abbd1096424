"""What the leading process tells the others of a run: which network, and what is done with it.

They load the model's definition themselves, and then do what the leading process does. Weights,
rows of batches and these orders come from it, over the processes' own connections.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import torch

from app.domain.errors import PlanError
from app.domain.plan import Plan, TrainingKind
from app.planning.mechanisms.catalogue import mechanism_named
from workers.training.frame import ReferenceFrame
from workers.training.networks.base import digest_of
from workers.training.team import ALONE, Team


class Order(StrEnum):
    """What is done next."""

    REHEARSE = "rehearse"
    BEGIN = "begin"
    START = "start"
    END = "end"


@dataclass(frozen=True)
class Beginning:
    """What a run is about.

    Attributes:
        plan: as JSON.
        base: the digest of the network's public tensors, as JSON.
        records: how many are learned from.
        held_out: how many are not, and may end the fine-tuning.
        trains: whether the network is trained, and not loaded.
    """

    model_id: str
    plan: dict[str, Any]
    base: dict[str, Any] | None
    records: int
    held_out: int
    trains: bool


def require_same_frame(team: Team, frame: ReferenceFrame | None) -> None:
    """Check that the noisy phase's coordinates are the leading process's, if it has any.

    Raises:
        PlanError: the network's factory draws other numbers under the same seeds here.
    """
    document: object = None
    if frame is not None:
        centre = {name: digest_of(tensor) for name, tensor in frame.centre.items()}
        document = [frame.to_json(), centre]
    own = torch.frombuffer(
        bytearray(hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()),
        dtype=torch.uint8,
    )
    leading = own.clone()
    team.align_(leading)
    if not torch.equal(leading, own):
        raise PlanError("the network's initialisation differs between processes of one run")


def assembled(team: Team, beginning: Beginning) -> Team:
    """Return the processes that divide a run, once they know what it is about.

    A run that is not divided is the leading process's alone.
    """
    if divided_among(team, beginning.plan) == 1:
        return ALONE
    team.announce(Order.BEGIN, **asdict(beginning))
    return team


def divided_among(team: Team, plan: Mapping[str, Any]) -> int:
    """Return how many processes divide a plan's work, the plan as JSON."""
    return team.devices if is_divided(Plan.from_json(plan)) else 1


def is_divided(plan: Plan) -> bool:
    """Return whether the work of a plan is divided where there are several devices."""
    return mechanism_named(plan.mechanism).divides and plan.training is TrainingKind.RECIPE
