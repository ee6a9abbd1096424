"""Several processes that call one function together, as those of a run do."""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from app.runtime.logs import describe
from workers.distributed.execution import ANSWERED_WITHIN, confess, connected, launch
from workers.distributed.processes import Processes

Part = Callable[..., Any]


def together(part: Part, *arguments: object, devices: int) -> list[Any]:
    """Return what each process returns; ``part`` is a module's function of a team and arguments.

    Its processes have carried out other parts before: starting some takes many seconds.
    """
    return _crew(devices).carry_out(part, arguments)


def launched(
    part: Part,
    *arguments: object,
    devices: int,
    folder: Path,
    answered_within: timedelta = ANSWERED_WITHIN,
) -> list[Any]:
    """Return what each process returns, all of them started for this, and watched, as a run's."""
    given = (part, arguments, str(folder), answered_within)
    launch(_process, *given, devices=devices, name="test")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(devices)]


def _process(
    part: Part,
    arguments: Sequence[object],
    folder: str,
    answered_within: timedelta,
    pipes: Sequence[Connection],
) -> None:
    environment: Mapping[str, str] = os.environ
    rank = int(environment["RANK"])
    try:
        torch.set_num_threads(1)
        team: Processes = connected(environment, answered_within=answered_within)
        torch.save(part(team, *arguments), Path(folder) / f"{rank}.pt")
    except BaseException as error:  # noqa: BLE001 - as the product does
        confess(pipes[rank], error)


class _Crew:
    """Processes that are connected, and carry out one part after another, until one fails."""

    def __init__(self, devices: int) -> None:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = get_context("spawn")
        self._members = []
        self._processes = []
        for rank in range(devices):
            ours, theirs = context.Pipe()
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(devices),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
            }
            process = context.Process(target=_member, args=(environment, theirs), daemon=True)
            process.start()
            theirs.close()
            self._members.append(ours)
            self._processes.append(process)

    def carry_out(self, part: Part, arguments: Sequence[object]) -> list[Any]:
        for member in self._members:
            member.send((part, arguments))
        answers: list[Any] = []
        try:
            answers += [member.recv() for member in self._members]
        finally:
            said = [answer for answer in answers if isinstance(answer, str)]
            if said or len(answers) < len(self._members):
                _crew.cache_clear()
                for process in self._processes:
                    process.kill()
        assert said == []
        return [torch.load(io.BytesIO(answer), weights_only=False) for answer in answers]


_crew = cache(_Crew)


def _member(environment: Mapping[str, str], orders: Connection) -> None:
    torch.set_num_threads(1)
    team = connected(environment)
    while True:
        part, arguments = orders.recv()
        try:
            result = io.BytesIO()
            torch.save(part(team, *arguments), result)
            orders.send(result.getvalue())
        except BaseException as error:
            orders.send(describe(error))
            raise
