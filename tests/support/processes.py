"""Several processes that call one function together, as those of a run do."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from workers.distributed.connecting import ANSWERED_WITHIN, connected
from workers.distributed.launching import Confession, launch
from workers.distributed.team import Processes

Part = Callable[..., Any]


def together(
    part: Part,
    *arguments: object,
    devices: int,
    folder: Path,
    answered_within: timedelta = ANSWERED_WITHIN,
) -> list[Any]:
    """Return what each process returns; ``part`` is a module's function of a team and arguments."""
    given = (part, arguments, str(folder), answered_within)
    launch(_process, *given, devices=devices, name="test")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(devices)]


def _process(
    part: Part,
    arguments: Sequence[object],
    folder: str,
    answered_within: timedelta,
    confessions: Sequence[Confession],
) -> None:
    environment: Mapping[str, str] = os.environ
    rank = int(environment["RANK"])
    try:
        torch.set_num_threads(1)
        team: Processes = connected(environment, answered_within=answered_within)
        torch.save(part(team, *arguments), Path(folder) / f"{rank}.pt")
    except BaseException as error:  # noqa: BLE001 - as the product does
        confessions[rank].fail(error)
