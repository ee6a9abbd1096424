"""The one accountant of every tracked mechanism: it reads a lineage's history and nothing else.

The two worlds' maps differ by kappa k eta M / b at a step over a batch that still held k of the
forgotten records, and are equal at all others; noise is what the history says was added. So
``minorant`` bounds what the last iterate tells of the union of all records forgotten so far. Where
weights are projected, the bound that starts from the drift at the last request counts too; where
requests may depend on the releases before the last run, those releases compose.

The computed head may be further from the ideal one by what floats do: in each world the computed
chain is compared with the ideal one by Theorem 3, whose shifts are the roundings alone; the noise
of the next step or release hides them.

Guarantee: mu-GDP, floats included where the recipe states its dimension. Neighbouring relation: the
recipe's. Assumptions: ``ASSUMPTIONS``. Source: docs/guarantees.md, sections 2, 6, 6.5,
9 and 11.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from app.accounting.chains.minorant import Minorant, geometric_sum, log_of, power
from app.accounting.computed_guarantee import computed
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.histories.history import Event, Forget, History, Recipe, Release, Steps
from app.accounting.histories.strong_convexity import ASSUMPTIONS as CONVEX
from app.accounting.precision import NONE, Residue, cell_diagonal, noise_norm, sampling_residue
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.errors import ParameterError

_UNIT = 2.0**-53


def residue_of(history: History) -> Residue:
    """Return the residue of a lineage's head; none where the recipe states no dimension."""
    recipe, dimension = history.recipe, history.recipe.dimension
    if dimension is None:
        return NONE
    rate = recipe.contraction
    sampled, hidden, delta, waiting = 0.0, 0.0, 0.0, 0.0  # squares of mu; then a distance
    for event, reach in zip(history.events, reaches(history), strict=True):
        if not isinstance(event, Steps | Release):
            continue
        error, count = step_error(recipe, reach=reach), 1
        if isinstance(event, Steps):
            count = event.count
        if isinstance(event, Steps) and event.noise_std == 0:
            waiting = power(rate, count) * waiting + error * geometric_sum(rate, count)
        if event.noise_std == 0:
            continue
        left = sampling_residue(
            dimension=dimension, draws=count, reach=reach, noise_std=event.noise_std
        )
        sampled, delta = sampled + left.mu**2, delta + left.delta
        half = cell_diagonal(dimension=dimension, noise_std=event.noise_std) / 2
        if isinstance(event, Steps):
            waiting = rate * waiting + error
            lasting = min(count - 1, (1 + rate) / (1 - rate) if rate < 1 else math.inf)
            hidden += lasting * ((rate * half + error) / event.noise_std) ** 2
        hidden += (waiting / event.noise_std) ** 2
        waiting = half + error  # of a projection after the last noise
    mu = math.sqrt(sampled) + math.sqrt(hidden)
    return Residue(mu=mu * (1 + 1e-12), delta=delta * (1 + 1e-12))


def step_error(recipe: Recipe, *, reach: float) -> float:
    """Return how far a step in float64 may be off, at norms up to ``reach`` (section 6.5)."""
    d = recipe.dimension or 0
    gradient = d * reach + 13 * reach + 9 * d + 2 * recipe.batch_size + 40
    gradient *= max(1.0, recipe.lipschitz / math.sqrt(2), recipe.smoothness / 0.5)
    update = 4 * (reach + recipe.learning_rate * recipe.lipschitz)
    if recipe.radius is not None:
        update += (d + 10) * reach
    return _UNIT * (recipe.learning_rate * gradient + update)


def reaches(history: History) -> Iterator[float]:
    """Yield bounds on the norms of the iterates up to each event's end, before and after noise.

    Noise exceeds its share with a chance below 2^-58 at each noisy step; roundings are within the
    tenth that is added. A projection to a larger ball changes nothing.
    """
    recipe, steps, variance = history.recipe, 0, 0.0
    pull = recipe.learning_rate * recipe.lipschitz
    most = math.inf if recipe.radius is None else recipe.radius + pull
    if recipe.contraction < 1:
        most = min(most, pull / (1 - recipe.contraction))
    for event in history.events:
        if isinstance(event, Release):
            variance += event.noise_std**2
        elif isinstance(event, Steps):
            steps += event.count
            lasting = geometric_sum(recipe.contraction**2, event.count)
            variance += event.noise_std**2 * lasting
        noise = noise_norm(dimension=recipe.dimension or 0, noise_std=math.sqrt(variance))
        yield 1.1 * (min(pull * (steps + 1), most) + noise)


ASSUMPTIONS = (
    *CONVEX,
    *enforced(
        "the history lists every step, release and request of the lineage and the noise of each",
        "each run went on from the last release and nothing else was kept of the one before",
        "no other iterate of this run was released or stored",
    ),
)
ADAPTIVE_SOURCE = "Chourasia & Shah 2023, Theorem 4.3, sharpened"
MOST_VISITS = 2_000_000
_SMALLEST = 1e-300


class HistoryAccountant:
    """What a history guarantees, and what it would guarantee after more steps and noise.

    The history has all requests that are to be covered; the neighbouring relation is its own. If
    ``adaptive``, requests may depend on the releases before the last run.
    """

    def __init__(self, history: History, terms: Terms, *, adaptive: bool = False) -> None:
        self._history = history
        self._terms = _terms(terms, history, adaptive=adaptive)
        composes = adaptive and history.releases > 0
        self._closed, minorant = _walked(history, composes=composes)
        self._open = [minorant]
        if history.recipe.radius is not None and not composes:
            self._open.append(_from_the_last_request(history))

    def guarantee(
        self, *, steps: int = 0, noise_std: float = 0.0, release_noise_std: float = 0.0
    ) -> GaussianGuarantee:
        """Return the guarantee after more steps and a release; without noise there is none."""
        mu = self._ideal_mu(steps, noise_std, release_noise_std)
        if not math.isfinite(mu):
            raise ParameterError(
                "noise_std", "above 0 after forgotten records were read: the history has none"
            )
        after = self._history.after_steps(steps, noise_std=noise_std)
        residue = residue_of(after.after_release(noise_std=release_noise_std))
        ideal = GaussianGuarantee(terms=self._terms, mu=mu)
        return ideal if mu == 0 else computed(ideal, residue)

    def meets(
        self,
        *,
        epsilon: float,
        delta: float,
        steps: int = 0,
        noise_std: float = 0.0,
        release_noise_std: float = 0.0,
    ) -> bool:
        """Say whether that guarantee would imply (epsilon, delta); without noise it does not."""
        if not math.isfinite(self._ideal_mu(steps, noise_std, release_noise_std)):
            return False
        guarantee = self.guarantee(
            steps=steps, noise_std=noise_std, release_noise_std=release_noise_std
        )
        return guarantee.meets(epsilon=epsilon, delta=delta)

    def _ideal_mu(self, steps: int, noise_std: float, release_noise_std: float) -> float:
        """Return mu in real arithmetic, 0 where nothing was forgotten."""
        if self._history.forgotten() == 0:
            return 0.0
        bounds = []
        for begun in self._open:
            minorant = begun.copy()
            minorant.steps(
                contraction=self._history.recipe.contraction, noise_std=noise_std, count=steps
            )
            minorant.step(contraction=1.0, shift=0.0, noise_std=release_noise_std)
            bounds.append(minorant.mu())
        return math.hypot(self._closed, min(bounds)) * (1 + 1e-15)


def terms_of(source: str) -> Terms:
    """Return the terms of a mechanism that is accounted for here."""
    return Terms(
        neighbours=Neighbours.ZERO_OUT, adaptive=False, assumptions=ASSUMPTIONS, source=source
    )


def drift(history: History) -> float:
    """Return D: how far apart the worlds can be while they share their noise, rounded up."""
    recipe, distance = history.recipe, 0.0
    for event, position, present in history.walk():
        if isinstance(event, Steps):
            gained = _gained(recipe, position, event.count, present)
            if distance > 0 or gained > 0:
                left = power(recipe.contraction, event.count) * distance
                # Not 0, which would say that no record was ever read.
                distance = min(recipe.cap, max(_SMALLEST, (left + gained) * (1 + 1e-15)))
    return distance * (1 + 1e-12)


def worst_case_drift(*, recipe: Recipe, records: int = 1) -> float:
    """Return Z for ``records`` records: the drift after training of any length, rounded up.

    Z = kappa (learning_rate lipschitz / b) / (1 - c^(n/b)) a record, with all of them in the batch
    that was visited last (Chien et al. 2024, Lemma 3.3; Corollary J.1 with its exponents mended).
    Without a radius, weight_decay must be above 0.
    """
    rate = recipe.contraction
    if rate == 1:
        if recipe.radius is None:
            raise ParameterError("weight_decay", "above 0 where no radius bounds the weights")
        return recipe.cap
    lost = -math.expm1(recipe.batches * log_of(rate))
    return min(recipe.cap, records * recipe.shift / lost * (1 + 1e-12))


def placed_worst(history: History, records: int) -> dict[int, int]:
    """Return the batches of so many records, not forgotten yet, that noise has the most to hide.

    That is the batch visited last, and where it is full the one before it. Where there are not so
    many, all that are left are returned.
    """
    recipe, gone, placed = history.recipe, history.by_batch(), dict[int, int]()
    for age in range(recipe.batches):
        batch = (history.steps - 1 - age) % recipe.batches
        room = min(records, recipe.batch_size - gone.get(batch, 0))
        if room > 0:
            placed[batch] = room
            records -= room
        if records == 0:
            break
    return placed


def _terms(terms: Terms, history: History, *, adaptive: bool) -> Terms:
    terms = replace(terms, neighbours=history.recipe.neighbours, adaptive=adaptive)
    if not adaptive:
        return terms
    private = enforced("every earlier release was private for the records present in it")
    return replace(
        terms,
        assumptions=(*terms.assumptions, *private),
        source=f"{terms.source}; {ADAPTIVE_SOURCE}",
    )


def _walked(history: History, *, composes: bool) -> tuple[float, Minorant]:
    """Return mu of the releases that compose, 0 for none, and the minorant of what follows."""
    if noisy_visits(history) > MOST_VISITS:
        limit = f"with at most {MOST_VISITS} noisy visits to forgotten records"
        raise ParameterError("events", limit)
    minorant, closed = Minorant(), list[float]()
    for event, position, present in history.walk():
        _walk(minorant, history.recipe, event, position, present)
        if isinstance(event, Release) and composes:
            closed.append(minorant.mu())
            minorant = Minorant()
    return math.hypot(*closed), minorant


def noisy_visits(history: History) -> int:
    """Return how many visits to forgotten records must be walked one after the other."""
    return sum(
        -(-event.count // history.recipe.batches) * len(present)
        for event, _, present in history.walk()
        if isinstance(event, Steps) and event.noise_std > 0 and len(present) >= 2
    )


def _from_the_last_request(history: History) -> Minorant:
    last = max(
        (index for index, event in enumerate(history.events) if isinstance(event, Forget)),
        default=-1,
    )
    before = replace(history, events=history.events[: last + 1])
    minorant = Minorant(start_distance=drift(before))
    for event in history.events[last + 1 :]:
        _walk(minorant, history.recipe, event, 0, {})
    return minorant


def _walk(
    minorant: Minorant, recipe: Recipe, event: Event, position: int, present: Mapping[int, int]
) -> None:
    """Walk one event; ``position`` counts the steps before it."""
    if isinstance(event, Release):
        minorant.step(contraction=1.0, shift=0.0, noise_std=event.noise_std)
    elif isinstance(event, Steps) and not present:
        minorant.steps(contraction=recipe.contraction, noise_std=event.noise_std, count=event.count)
    elif isinstance(event, Steps) and event.noise_std == 0:
        minorant.merged(
            contraction=recipe.contraction,
            gained=_gained(recipe, position, event.count, present),
            noise_std=0.0,
            count=event.count,
        )
    elif isinstance(event, Steps):
        _walk_noisy(minorant, recipe, event, position, present)


def _walk_noisy(
    minorant: Minorant, recipe: Recipe, event: Steps, position: int, present: Mapping[int, int]
) -> None:
    """Walk noisy steps from visit to visit.

    Where only one batch is touched, a visit and the steps after it up to the next visit count as
    one step. Equal steps of that kind have falling chords, so all of them count as one step too.
    """
    rate, noise = recipe.contraction, event.noise_std
    batch, *others = present
    first = min((batch - position) % recipe.batches, event.count)
    if not others:
        minorant.steps(contraction=rate, noise_std=noise, count=first)
        whole = (event.count - first) // recipe.batches * recipe.batches
        for count in (whole, event.count - first - whole):
            if count:
                minorant.merged(
                    contraction=rate,
                    gained=_gained(recipe, batch, count, present),
                    noise_std=noise,
                    count=count,
                )
        return
    done = 0
    for offset, records in _visits(recipe, position, event.count, present):
        minorant.steps(contraction=rate, noise_std=noise, count=offset - done)
        minorant.step(contraction=rate, shift=recipe.shift * records, noise_std=noise)
        done = offset + 1
    minorant.steps(contraction=rate, noise_std=noise, count=event.count - done)


def _visits(
    recipe: Recipe, position: int, count: int, present: Mapping[int, int]
) -> Iterable[tuple[int, int]]:
    """Yield (offset, records) of each step that visits a batch with forgotten records, in order."""
    cycle = sorted(((batch - position) % recipe.batches, k) for batch, k in present.items())
    return (
        (start + offset, k)
        for start in range(0, count, recipe.batches)
        for offset, k in cycle
        if start + offset < count
    )


def _gained(recipe: Recipe, position: int, count: int, present: Mapping[int, int]) -> float:
    """Return the drift after ``count`` steps that begin without any."""
    rate, length = recipe.contraction, recipe.batches
    cycles, rest = divmod(count, length)
    whole = tail = 0.0
    for batch, records in present.items():
        offset = (batch - position) % length
        if cycles:
            whole += power(rate, length - 1 - offset) * records
        if offset < rest:
            tail += power(rate, rest - 1 - offset) * records
    if cycles:
        repeated = geometric_sum(power(rate, length), cycles) if rate < 1 else float(cycles)
        whole *= repeated * power(rate, rest)
    return recipe.shift * (whole + tail) * (1 + 1e-12 + 3e-16 * len(present))
