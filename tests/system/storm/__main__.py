"""Run storms, one seed after the other; the first that leaves something wrong ends them."""

import argparse
import secrets
import tempfile
import time
from pathlib import Path
from random import Random

from tests.support.patience import until
from tests.support.service import running
from tests.support.traces import Traces
from tests.system.storm.callers import Book, caller
from tests.system.storm.checks import Aftermath
from tests.system.storm.scene import build, build_doomed, exported
from tests.system.storm.watcher import Watcher
from tests.system.storm.weather import Weather

SECONDS = 240.0
REQUESTS = 20  # of each dataset
LAST_LINES = 80  # of the service's log, when something is wrong


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.storm", description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int, help="one drawn afresh if none is given")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    for seed in options.seeds or [secrets.randbelow(2**32)]:
        with tempfile.TemporaryDirectory(prefix="storm-") as directory:
            Path(directory).chmod(0o755)  # the servers' own accounts pass through it
            storm(seed, seconds=options.seconds, directory=Path(directory))


def storm(seed: int, *, seconds: float, directory: Path) -> None:
    """Have one storm and check what it leaves."""
    print(f"seed {seed}", flush=True)
    rng, book = Random(seed), Book()
    url = exported(directory / "export")
    with running(directory / "data", EXPUNGE_IMPORT_PREFIXES=url) as service:
        with service.client() as client:
            crowds = build(client)
            doomed, made = build_doomed(client)
        traces = Traces(service, *(crowd.at_first for crowd in crowds))
        weather = Weather(service, Random(rng.random()), url, doomed)
        watcher = Watcher(service.client, book, traces, directory / "downloads")
        watcher.start()
        began = time.monotonic()
        callers = [
            caller(
                crowd,
                service.client,
                book,
                requests=REQUESTS,
                seconds=seconds,
                rng=Random(rng.random()),
            )
            for crowd in crowds
        ]
        try:
            weather.blow(seconds)
            weather.calm()
            for thread in callers:
                thread.join()
            print(f"     {time.monotonic() - began:.0f} s: {_told(weather)}", flush=True)
            with service.client() as client:
                until(client.models)
                aftermath = Aftermath(service, client, book, crowds)
                aftermath.settle()
                for people in doomed.everyone():
                    traces.gone += [people.ids(), *people.features()]
                traces.superseded("doomed", made)
                watcher.stop()
                watcher.look(client)
                aftermath.check(traces)
        except BaseException:
            print(*service.log.read_text().splitlines()[-LAST_LINES:], sep="\n", flush=True)
            raise
        finally:
            watcher.stop()
            weather.end()


def _told(weather: Weather) -> str:
    return ", ".join(f"{name} {count}" for name, count in weather.counts.most_common())


if __name__ == "__main__":
    main()
