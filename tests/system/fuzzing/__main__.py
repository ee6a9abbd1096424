"""``python -m tests.system.fuzzing TARGET --seconds N``: search a target for inputs that break it.

Needs atheris, which has wheels for Linux on x86-64 alone. An input that breaks the target is
written to the working directory, and the exit code is not 0.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

HANGS_AFTER_S = 60
WORDS = Path(__file__).with_name("words.dict")

with atheris.instrument_imports(include=["app", "tests.system.fuzzing.targets"]):
    from tests.system.fuzzing.targets import TARGETS


def main() -> None:
    """Fuzz, starting from the target's seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    target = TARGETS[arguments.target]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(target.seeds):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        options = {
            "max_total_time": arguments.seconds,
            "timeout": HANGS_AFTER_S,
            "dict": WORDS,
            "max_len": 3 * max(map(len, target.seeds)),
        }
        flags = [f"-{name}={value}" for name, value in options.items()]
        atheris.Setup([sys.argv[0], *flags, corpus], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
