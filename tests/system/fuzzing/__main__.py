"""``python -m tests.system.fuzzing TARGET... --seconds N``: search for inputs that break targets.

Needs atheris, which has wheels for Linux on x86-64 alone. An input that breaks a target is written
to the working directory, and the exit code is not 0.
"""

import argparse
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import atheris

HANGS_AFTER_S = 60
MOST_MB = 2048
WORDS = Path(__file__).with_name("words.dict")

with atheris.instrument_imports(include=["app", "tests.system.fuzzing.targets"]):
    from tests.system.fuzzing.targets import TARGETS, Target


def main() -> None:
    """Fuzz one target after the other, each from its seeds and in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="+", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    arguments = parser.parse_args()
    broken = []
    for name in arguments.targets:
        if (process := os.fork()) == 0:
            _fuzz(TARGETS[name], arguments.seconds)
        _, status = os.waitpid(process, 0)
        if status:
            broken.append(name)
    if broken:
        sys.exit(f"broken: {', '.join(broken)}")


def _fuzz(target: Target, seconds: int) -> NoReturn:
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(target.seeds):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        # libFuzzer looks at the peak, which a process has from the one that started it.
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        options = {
            "max_total_time": seconds,
            "timeout": HANGS_AFTER_S,
            "rss_limit_mb": peak_mb + MOST_MB,
            "dict": WORDS,
            "max_len": 3 * max(map(len, target.seeds)),
        }
        flags = [f"-{name}={value}" for name, value in options.items()]
        atheris.Setup([sys.argv[0], *flags, corpus], target)
        atheris.Fuzz()
    sys.exit()


if __name__ == "__main__":
    main()
