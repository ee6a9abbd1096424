"""One of the processes of a run: the leading one carries it out, the others take part.

They are connected by gloo for CPU tensors and by NCCL for CUDA tensors. Rendezvous and all
connections are on the loopback interface. Nothing is encrypted there: what may read a process's
loopback traffic is root, which can read its memory too.

A process that does not lead is as sealed as the one that does: its weights are in a ``Sealed``, it
writes no file from before it gets the first row until its end, and what fails names neither weights
nor records. It has an odometer of its own, so it takes part in fine-tuning only where it has seen
the target met.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from app.domain.architectures import BaseDigest
from app.domain.errors import (
    LeaseLostError,
    ProcessLostError,
    RunFailedError,
    RunInterruptedError,
    SealedStateError,
)
from app.domain.plan import Plan
from app.planning.mechanisms.catalogue import mechanism_named
from app.runtime import logs
from app.runtime.failpoints import halfway, reach
from app.runtime.logs import describe
from app.runtime.processes.hardening import harden
from app.runtime.processes.stopping import GRACE_S, StopSignal, stop_with_parent
from app.runtime.settings import Settings
from app.services import Services, open_services
from workers.data.backbone import starting
from workers.data.loading import RunData, load_model
from workers.data.memory import free_at_once
from workers.distributed.processes import Processes
from workers.leases.attempts import is_permanent
from workers.leases.lease import Lease
from workers.mechanisms.catalogue import load_rules
from workers.mechanisms.lineage import fine_tune, lineage_of, meet_target, sealing
from workers.mechanisms.rehearsal import rehearse_model
from workers.run import execute
from workers.seal.ram_only import ram_only
from workers.training import examples
from workers.training.forms import InputForm
from workers.training.networks.held import pinned, start_of
from workers.training.orders import Beginning, Order, require_same_frame
from workers.training.tasks.task import Batch

VARIABLE: Final = "EXPUNGE_DEVICES"
CONNECTED_WITHIN: Final = timedelta(minutes=5)
ANSWERED_WITHIN: Final = timedelta(minutes=20)
"""How long a process waits for the others' part in what all of them do at once. Each has the same
work before it, so this is more than the slowest is behind; a process that waits for something else,
or stands still, ends the attempt."""
# The leading process may read records, or evaluate, for hours before it says what is next. If it
# ends, its connections are closed, which the others notice at once.
_TOLD_WITHIN: Final = timedelta(days=365)


def connected(
    environment: Mapping[str, str],
    *,
    within: timedelta = CONNECTED_WITHIN,
    answered_within: timedelta = ANSWERED_WITHIN,
) -> Processes:
    """Return the processes of this run, connected, as ``elastic_launch`` describes them.

    Raises:
        ProcessLostError: not all of them came in time.
        RunFailedError: this host has fewer GPUs than there are processes.
    """
    rank, devices = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    device = _device(rank, devices)
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = next(
            name for _, name in socket.if_nameindex() if name.startswith("lo")
        )
    try:
        store = TCPStore(
            environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), timeout=within
        )
        store.set(f"here/{rank}", "")
        store.wait([f"here/{other}" for other in range(devices)], within)
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
            store=PrefixStore("run", store),
            rank=rank,
            world_size=devices,
            timeout=answered_within,
        )
        orders = dist.new_group(backend="gloo", timeout=_TOLD_WITHIN)
    except RuntimeError as error:
        raise ProcessLostError(
            f"the {devices} processes of this run did not all connect within "
            f"{within.total_seconds():g} s"
        ) from error
    return Processes(rank, devices, orders=orders, device=device)


def _device(rank: int, devices: int) -> torch.device:
    """Return this process's own device, which PyTorch uses from now on where it is told "cuda"."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if torch.cuda.device_count() < devices:
        raise RunFailedError(
            f"{VARIABLE} is {devices}, and this host has {torch.cuda.device_count()} GPUs: lower it"
        )
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def carry_out(lease: Lease, devices: int) -> None:
    """Carry out a leased run in several processes of this host.

    Raises:
        ProcessLostError: one of them ended; another attempt may succeed.
        ExpungeError: as ``workers.run.execute``.
    """
    lease.check()
    launch(
        _process, os.getpid(), lease.run_id, lease.fencing_token, devices=devices, name=lease.run_id
    )


def _process(parent_pid: int, run_id: str, fencing_token: int, pipes: Sequence[Connection]) -> None:
    """Be one of the processes; ``elastic_launch`` has told the environment which."""
    rank = int(os.environ["RANK"])
    stop = StopSignal()
    try:
        _prepare(parent_pid, stop if rank == 0 else None)
        logs.note_process(run=run_id, process=str(rank))
        _take_part(run_id, fencing_token, stop)
    except BaseException as error:  # noqa: BLE001 - said in what may be shown, and never raised
        confess(pipes[rank], error)


def _prepare(parent_pid: int, stop: StopSignal | None) -> None:
    """Make this process as quiet as its parent, before it reads anything.

    The leading one ends at its next step when it is asked to stop, the others at once.
    """
    harden()
    logs.configure()
    if stop is not None:
        stop.listen()
    else:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    stop_with_parent(parent_pid, hangs_after_s=Settings().lease_s + GRACE_S)
    sys.dont_write_bytecode = True
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    with open(os.devnull, "w", encoding="utf-8") as nothing:  # noqa: PTH123 - libraries write to it directly
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["WORLD_SIZE"])))
    load_rules()
    free_at_once()


def _take_part(run_id: str, fencing_token: int, stop: StopSignal) -> None:
    if int(os.environ["RANK"]) != 0:
        reach("follower_connecting")
    team = connected(os.environ)
    services = open_services(Settings(), process="worker")
    try:
        if not team.leads:
            follow(services, team)
            return
        lease = Lease.shared(
            services.database, run_id, fencing_token, lease_s=services.settings.lease_s, stop=stop
        )
        with lease:
            execute(services, lease, team)
        team.announce(Order.END)
    finally:
        services.close()


@dataclass(frozen=True)
class Elsewhere(examples.Records):
    """Records that only the leading process reads: how many they are, and what they look like.

    Here come this process's rows of every batch.
    """

    records: int
    form: InputForm

    def __len__(self) -> int:
        return self.records

    def epoch(self, batch_size: int, **_: object) -> Iterator[Batch]:  # noqa: ARG002
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
        _take_part_in(services, team, Beginning(**order))


def _take_part_in(services: Services, team: Processes, beginning: Beginning) -> None:
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


_LOOPBACK: Final = "127.0.0.1"
_NAME: Final = "expunge_loopback"
_FOUND_WITHIN: Final = timedelta(minutes=5)
_END_WITHIN_S: Final = 15
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


_LOST: Final = "lost"  # another one ended, or all were told to
_RAISED: Final[dict[str, type[Exception]]] = {
    "lease_lost": LeaseLostError,
    "permanent": RunFailedError,
    "other": ProcessLostError,
}
"""By the word that a process says; the first of them is the reason."""


def confess(pipe: Connection, error: BaseException) -> NoReturn:
    """Say why this process fails, in what may be shown, and end it."""
    kind = "permanent" if is_permanent(error) else "other"
    if isinstance(error, LeaseLostError):
        kind = "lease_lost"
    elif isinstance(error, ProcessLostError | RunInterruptedError):
        kind = _LOST
    pipe.send_bytes(f"{kind} {describe(error)}".encode())
    os._exit(1)


def launch(entry: Callable[..., None], *arguments: object, devices: int, name: str) -> None:
    """Run a function in so many processes of this host, until all have returned.

    PyTorch's ``elastic_launch`` starts them, watches them and ends all when one ends. A process
    says in a pipe how it failed, since what it raised would be written to a file.

    It gets ``arguments`` and all ranks' pipes for ``confess``, and must not raise. ``name`` is the
    run's id.

    Raises:
        LeaseLostError, RunFailedError: a process said so.
        RunInterruptedError: this process was asked to stop.
        ProcessLostError: a process ended otherwise.
    """
    rendezvous_handler_registry.register(_NAME, _Loopback)
    context = get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(devices)]
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=name,
        rdzv_backend=_NAME,
        rdzv_endpoint=_LOOPBACK,
        local_addr=_LOOPBACK,
        max_restarts=0,
        start_method="spawn",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        shutdown_timeout=_END_WITHIN_S,
    )
    told, tell = ([pipe[end] for pipe in pipes] for end in (0, 1))
    with _signals_restored():
        try:
            elastic_launch(config, entry)(*arguments, tell)
        except SignalException as error:
            raise RunInterruptedError("the worker was asked to stop") from error
        except ChildFailedError as error:
            raise _why(told, error) from None


def _why(told: list[Connection], error: ChildFailedError) -> Exception:
    """Return what the processes said; one that lost another is not the reason."""
    said = {
        rank: pipe.recv_bytes().decode().split(" ", 1)
        for rank, pipe in enumerate(told)
        if pipe.poll()
    }
    silent = {rank: each for rank, each in error.failures.items() if rank not in said}
    for kind, raised in _RAISED.items():
        for known, reason in said.values():
            if known == kind and not (kind == "other" and silent):
                return raised(reason)
    for rank, failure in silent.items():
        code = failure.exitcode
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return ProcessLostError(f"process {rank} of this run ended: {how}")
    return ProcessLostError(next(reason for _, reason in said.values()))


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Give this process its own handlers back, which PyTorch's launcher replaces."""
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Loopback(RendezvousHandler):
    """Where processes of one host find each other.

    PyTorch's own rendezvous listens on every interface. This one is theirs but for the socket,
    which is bound to the loopback address before the store gets it.
    """

    def __init__(self, given: RendezvousParameters) -> None:
        self._run_id = given.run_id
        self._store: Store | None = None
        self._port = 0

    def get_backend(self) -> str:
        return _NAME

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            listening = socket.create_server((_LOOPBACK, 0))
            self._port = listening.getsockname()[1]
            self._store = TCPStore(
                _LOOPBACK,
                self._port,
                is_master=True,
                timeout=_FOUND_WITHIN,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
        return RendezvousInfo(
            PrefixStore(self._run_id, self._store),
            0,
            1,
            RendezvousStoreInfo(_LOOPBACK, self._port),
        )

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass  # no other host can join

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._store = None
        return True
