"""What ensembles cost and score: ``python -m benchmarks.ensembles [--case NAME] [--quick]``.

Pictures from scratch, the same fine-tuned whole from public weights, a table of customers, texts
with adapters on a frozen transformer, and all of EfficientNet-Lite0: each as an ensemble of 1, 4,
8, 16 and 32 members. 100 people ask by themselves, then 100 together: compared are the gradients of
the members that are trained anew with those of one training of everything, and the accuracy before
and after. Beside them two other ways to forget the same 100 (``benchmarks.ensembles_rivals``).
Results go to benchmarks/results/ensembles.json and .png as they come; what is there already is not
measured again, so that the benchmark can be stopped and go on. ``benchmarks.ensembles_service``
measures seconds from POST to certificate.

    python -m benchmarks.ensembles [--case NAME ...] [--cache FOLDER] [--results FILE] [--quick]
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from app.accounting.exact import expected_members
from benchmarks import ensembles_cases as cases
from benchmarks import harness
from benchmarks.ensembles_cases import Case
from benchmarks.ensembles_figures import draw, table
from benchmarks.ensembles_pictures import cifar10
from benchmarks.ensembles_rivals import gradient_clipping, ridge_head
from benchmarks.public_features import default_cache
from workers.training.networks.ensemble import Ensemble
from workers.training.networks.network import Network

PEOPLE: Final = 100
_SEED: Final = 11
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """One ensemble.

    Attributes:
        members: how many networks it averages.
        accuracy: on the test records.
        after: the same after people were forgotten; None where that was not carried out.
        each: gradients of a request of one person, as a part of one training of everything, in the
            mean of requests one after the other.
        together: the same of one request of all these people.
        expected: what the planner expects of that, from the number of members alone.
        seconds: of one training of all members, on one thread.
    """

    members: int
    accuracy: float
    after: float | None
    each: float
    together: float
    expected: float
    seconds: float


def leaving(case: Case) -> NDArray[np.int64]:
    """Return the people who ask to be forgotten, the same ones of each ensemble."""
    draws = np.random.default_rng(_SEED)
    return draws.choice(np.unique(case.person), size=PEOPLE, replace=False)


def row_of(case: Case, members: int) -> Row:
    """Measure an ensemble of so many members."""
    people = np.unique(case.person, return_inverse=True)[1]
    draws = np.random.default_rng((_SEED, members))
    owner = draws.integers(members, size=people.max() + 1)[people]
    started = time.perf_counter()
    networks = [_trained(case, owner == own) for own in range(members)]
    seconds = time.perf_counter() - started
    before = _accuracy(case, networks)
    left, each, concerned = np.ones(len(owner), dtype=bool), list[float](), set[int]()
    for person in leaving(case):
        own = case.person == person
        left[own] = False
        member = int(owner[own][0])
        concerned.add(member)
        each.append(float((left & (owner == member)).sum() / left.sum()))
    answered = case.answered is None or members in case.answered
    for member in sorted(concerned) if answered else ():
        networks[member] = _trained(case, left & (owner == member))
    anew = left & np.isin(owner, sorted(concerned))
    return Row(
        members=members,
        accuracy=before,
        after=_accuracy(case, networks) if answered else None,
        each=float(np.mean(each)),
        together=float(anew.sum() / left.sum()),
        expected=expected_members(members, PEOPLE) / members,
        seconds=seconds,
    )


def rivals_of(case: Case) -> Iterator[dict[str, Any]]:
    """Yield the other ways to forget the same people."""
    left = ~np.isin(case.person, leaving(case))
    for rival in (ridge_head, gradient_clipping):
        yield asdict(rival(case, left))


def measure(case: Case, known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a case's results, each time with one more figure; what is known is kept."""
    document = {
        "note": case.note,
        "records": len(case.train),
        "people": len(np.unique(case.person)),
        "tested": len(case.test),
        "recipe": {
            name: value
            for name, value in case.recipe.to_json().items()
            if name in ("optimizer", "learning_rate", "epochs", "batch_size")
        },
        "rows": list(known.get("rows", ())),
        "rivals": list(known.get("rivals", ())),
    }
    for count in case.sizes:
        if count not in {row["members"] for row in document["rows"]}:
            document["rows"].append(asdict(row_of(case, count)))
            yield document
    if not document["rivals"]:
        document["rivals"] = list(rivals_of(case))
    yield document


def _trained(case: Case, chosen: NDArray[np.bool_]) -> nn.Module:
    """Return a network that learned from the chosen records."""
    network = Network(case.start, device=_CPU)
    if chosen.any():
        records = case.train.select(np.flatnonzero(chosen))
        network.train(records, case.recipe, epochs=case.recipe.epochs)
    return network.module


def _accuracy(case: Case, networks: list[nn.Module]) -> float:
    whole = Network(lambda: Ensemble(networks, case.task), device=_CPU)
    return float(whole.evaluate(case.test).metrics["accuracy"])


def all_cases(cache: Path) -> dict[str, Callable[[], Case]]:
    """Return what makes each case, the cheap ones first."""
    return {
        "churn": cases.churn,
        "texts": partial(cases.texts, cache=cache),
        "scratch": partial(cases.mnist, public=False),
        "public": partial(cases.mnist, public=True),
        "pictures": cifar10,
    }


def quick_cases() -> dict[str, Callable[[], Case]]:
    """Return cases of seconds."""
    return {
        "churn": partial(cases.churn, customers=300),
        "scratch": partial(cases.digits, public=False),
        "public": partial(cases.digits, public=True),
    }


def main() -> None:
    """Measure, print and write."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--case", action="append", choices=list(all_cases(Path())))
    parser.add_argument("--cache", type=Path, default=default_cache(), help="of public weights")
    parser.add_argument("--quick", action="store_true", help="small data and two sizes")
    options = harness.parsed(parser, "ensembles")
    torch.set_num_threads(1)
    made = quick_cases() if options.quick else all_cases(options.cache)
    results = options.results
    document: dict[str, Any] = {}
    if results is not None and results.exists():
        document = json.loads(results.read_text())
    for name in options.case or made:
        case = made[name]()
        if options.quick:
            case = replace(case, sizes=case.sizes[:2])
        for found in measure(case, document.get(name, {})):
            document[name] = found
            harness.write(document, results)
            print(name, *found["rows"][-1:], flush=True)
    print(table(document))
    if results is not None:
        draw(document, results.with_suffix(".png"))


if __name__ == "__main__":
    main()
