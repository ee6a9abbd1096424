"""A run that tells its test what it holds while that may be nowhere else.

What is told stays in the test's memory. A run in a process of its own tells it through a pipe.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tests.support.patience import PATIENCE_S

_REPOSITORY = Path(__file__).parents[2]

Tell = Callable[[str, bytes], None]
Spill = Callable[[bytes], None]


def watch(tell: Tell, on_step: Spill = lambda _: None, patch: Any = setattr) -> None:
    """Have every run of this process tell its keys, noise and weights, step by step.

    Args:
        tell: called with what it is (key, noise, training, noisy phase, window) and its bytes:
            float64 of noise, float32 of weights, and a streamed window's inputs as they are kept.
        on_step: called with the weights after each step of the noisy phase.
        patch: replaces an attribute; pytest's own does it for one test.
    """
    from workers.data.streaming import Streamed
    from workers.noise import generators
    from workers.seal import sealed
    from workers.training.networks.network import Network
    from workers.training.tasks.task import INPUTS

    fresh_key, add = generators.fresh_key, generators.SecureNoise.add_
    train, noisy_phase = Network.train, sealed.run_noisy_phase
    filled = Streamed._filled

    def told_key() -> bytes:
        key = fresh_key()
        tell("key", bytes(key))
        return key

    def told_noise(self: Any, position: Any, noise_std: float) -> None:
        before = position.clone()
        add(self, position, noise_std)
        tell("noise", (position - before).cpu().numpy().tobytes())

    def told_training(network: Any, *args: Any, on_progress: Any, **more: Any) -> int:
        def telling(*progress: object) -> None:
            tell("training", _bytes_of(network.flat.values))
            on_progress(*progress)

        return train(network, *args, on_progress=telling, **more)

    def told_phase(network: Any, *args: Any, on_progress: Any, **more: Any) -> Any:
        def telling(*progress: object) -> None:
            tell("noisy phase", _bytes_of(network.flat.values))
            on_step(_bytes_of(network.flat.values))
            on_progress(*progress)

        return noisy_phase(network, *args, on_progress=telling, **more)

    def told_window(streamed: Any, *args: Any) -> Any:
        window = filled(streamed, *args)
        tell("window", window.tensors[INPUTS].numpy().tobytes())
        return window

    patch(Streamed, "_filled", told_window)
    patch(generators, "fresh_key", told_key)
    patch(generators.SecureNoise, "add_", told_noise)
    patch(Network, "train", told_training)
    patch(sealed, "run_noisy_phase", told_phase)


def told_by(run_id: str, *options: str) -> tuple[list[tuple[str, bytes]], bytes]:
    """Carry out a run, or help with one, in another process; return what it told, and its log.

    Args:
        run_id: which run.
        options: ``kill=STEP`` ends the process at a step of the noisy phase; ``spill=FILE`` has it
            write its weights to a file at each, ``spool=FILE`` the records of each window that it
            streams; ``open`` leaves its disk open to it; ``help`` trains members of a run that goes
            on instead.
    """
    receiving, sending = Pipe(duplex=False)
    command = [sys.executable, "-m", "tests.support.watched", run_id, str(sending.fileno())]
    process = subprocess.Popen(
        [*command, *options], cwd=_REPOSITORY, pass_fds=[sending.fileno()], stderr=subprocess.PIPE
    )
    sending.close()
    told = list(_received(receiving))
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (0, -signal.SIGKILL), log
    return told, log


def _received(receiving: Connection) -> Iterator[tuple[str, bytes]]:
    with suppress(EOFError):
        while True:
            yield receiving.recv()


def _bytes_of(values: Any) -> bytes:
    return values.detach().cpu().numpy().astype(np.float32).tobytes()


def _main(run_id: str, pipe: str, *options: str) -> None:
    from app.runtime import logs
    from app.runtime.processes.hardening import harden
    from workers import jobs, run

    sending, one_at_a_time = Connection(int(pipe), readable=False), Lock()
    chosen = dict(option.partition("=")[::2] for option in options)
    steps = iter(range(1, 10**6))

    def on_step(weights: bytes) -> None:
        if "spill" in chosen:
            Path(chosen["spill"]).write_bytes(weights)
        if str(next(steps)) == chosen.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)

    if "open" in chosen:
        run.ram_only = nullcontext

    def tell(what: str, content: bytes) -> None:
        if what == "window" and "spool" in chosen:
            Path(chosen["spool"]).write_bytes(content)
        with one_at_a_time:
            sending.send((what, content))

    watch(tell, on_step)
    logs.configure()
    harden()
    job = jobs.train_members if "help" in chosen else jobs.execute_run
    job(run_id)


if __name__ == "__main__":
    _main(*sys.argv[1:])
