"""What happened to one lineage: every step, release and request, with the noise that each added.

A lineage trains on a fixed partition of its records, visited cyclically, one batch a step. Its
history lists, in order,

    steps     a number of optimisation steps, with noise of one standard deviation at each, or none
    release   the end of a run, with the noise that the release itself added, or none
    forget    a request: how many records of each batch leave

and holds no record id and no weight. Only noise that is listed counts. Source: docs/guarantees.md,
section 6.1.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, cast

from app.accounting.chains.minorant import geometric_sum, power
from app.accounting.histories.strong_convexity import contraction, gradient_shift
from app.accounting.precision import noise_norm
from app.accounting.terms import Neighbours
from app.domain.checks import require_noise, require_non_negative, require_positive, require_steps
from app.domain.errors import ParameterError

MOST_STEPS = 2_000_000_000
MOST_EVENTS = 20_000
MOST_COUNTED = 2**53


@dataclass(frozen=True)
class Recipe:
    """What every step of the lineage has in common.

    Attributes:
        learning_rate: eta.
        weight_decay: lambda, above 0 for a bounded drift.
        smoothness: of the loss of one record, without the weight decay.
        lipschitz: M, of the loss of one record, without the weight decay.
        batch_size: b, the divisor of the gradient; stays although records are zeroed out.
        batches: n / b, the length of the cycle.
        neighbours: zero_out or replacement.
        radius: R of the ball to which weights are projected after each step, or None.
        dimension: how many weights; None accounts in real arithmetic.
    """

    learning_rate: float
    weight_decay: float
    smoothness: float
    lipschitz: float
    batch_size: int
    batches: int
    neighbours: Neighbours = Neighbours.ZERO_OUT
    radius: float | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        require_steps("batch_size", self.batch_size)
        require_steps("batches", self.batches)
        if self.radius is not None:
            require_positive("radius", self.radius)
        if self.dimension is not None:
            require_steps("dimension", self.dimension)
        for name in ("batch_size", "batches", "dimension"):
            if (getattr(self, name) or 0) > MOST_COUNTED:
                raise ParameterError(name, f"at most {MOST_COUNTED}")
        _ = self.contraction, self.shift
        object.__setattr__(self, "neighbours", Neighbours(self.neighbours))

    @property
    def contraction(self) -> float:
        """c, rounded up."""
        return contraction(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            smoothness=self.smoothness,
        )

    @property
    def shift(self) -> float:
        """s: how far one record moves one step over its batch, rounded up."""
        return gradient_shift(
            learning_rate=self.learning_rate,
            lipschitz=self.lipschitz,
            batch_size=self.batch_size,
            neighbours=self.neighbours,
        )

    @property
    def cap(self) -> float:
        """2 radius, or infinity."""
        return math.inf if self.radius is None else 2 * self.radius


@dataclass(frozen=True)
class Steps:
    """A number of optimisation steps; the cycle of batches goes on where it stopped."""

    count: int
    noise_std: float = 0.0

    def __post_init__(self) -> None:
        require_steps("steps", self.count)
        _check_noise(self.noise_std)


@dataclass(frozen=True)
class Release:
    """The end of a run: its weights, after the release's own noise, became the lineage's head."""

    noise_std: float = 0.0

    def __post_init__(self) -> None:
        _check_noise(self.noise_std)


@dataclass(frozen=True)
class Forget:
    """A request: how many records leave, in pairs of a batch number and a count."""

    records: tuple[tuple[int, int], ...]


Event = Steps | Release | Forget


@dataclass(frozen=True)
class History:
    """What happened to one lineage, from its start: steps, releases and requests, in order."""

    recipe: Recipe
    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        if len(self.events) > MOST_EVENTS:
            raise ParameterError("events", f"at most {MOST_EVENTS}")
        for event in self.events:
            if isinstance(event, Forget):
                _check_request(event, self.recipe)
        if max(self.by_batch().values(), default=0) > self.recipe.batch_size:
            raise ParameterError("records", f"at most {self.recipe.batch_size} of one batch")
        if self.steps > MOST_STEPS:
            raise ParameterError("events", f"at most {MOST_STEPS} steps")

    def after_steps(self, count: int, *, noise_std: float = 0.0) -> "History":
        """Return the history after ``count`` more steps (0 changes nothing)."""
        return self._after(Steps(count, noise_std)) if count else self

    def after_release(self, *, noise_std: float = 0.0) -> "History":
        """Return the history after a run's end."""
        return self._after(Release(noise_std))

    def after_request(self, records: Mapping[int, int]) -> "History":
        """Return the history after a request, by batch; requests with nothing between are one."""
        events, counts = self.events, Counter(records)
        if events and isinstance(events[-1], Forget):
            counts.update(dict(events[-1].records))
            events = events[:-1]
        if not counts:
            return self
        return replace(self, events=(*events, Forget(tuple(sorted(counts.items())))))

    def _after(self, event: Event) -> "History":
        return replace(self, events=(*self.events, event))

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return sum(event.count for event in self.events if isinstance(event, Steps))

    @property
    def releases(self) -> int:
        """How many runs have ended."""
        return sum(isinstance(event, Release) for event in self.events)

    @property
    def last_run(self) -> tuple[Steps | Release, ...]:
        """The steps and the release of the last run, without the requests among and after them."""
        events = [event for event in self.events if not isinstance(event, Forget)]
        ends = [index for index, event in enumerate(events[:-1]) if isinstance(event, Release)]
        return tuple(events[ends[-1] + 1 :] if ends else events)

    @property
    def asked_since(self) -> bool:
        """Whether a request came after the last event that changed a weight."""
        return bool(self.events) and isinstance(self.events[-1], Forget)

    def as_released(self) -> "History":
        """Return the history as it was at its last event that changed a weight."""
        return replace(self, events=self.events[:-1]) if self.asked_since else self

    @property
    def is_released(self) -> bool:
        """Whether the last release is the lineage's head: at most one request came after it."""
        end = self.events[-2:-1] if self.asked_since else self.events[-1:]
        return bool(end) and isinstance(end[0], Release)

    @property
    def asked_between_runs(self) -> bool:
        """Whether it begins with a training, and each request came after a run, before the next."""
        trained = all(isinstance(first, Steps) for first in self.events[:1])
        return trained and all(
            isinstance(before, Release) and len(event.records) > 0
            for before, event in pairwise(self.events)
            if isinstance(event, Forget)
        )

    @property
    def starts_noisy(self) -> bool:
        """Whether every step so far added noise; False before the first."""
        steps = [event for event in self.events if isinstance(event, Steps)]
        return bool(steps) and all(event.noise_std > 0 for event in steps)

    def begins_with(self, other: "History") -> bool:
        """Whether all that ``other`` lists happened here first; more may have left at its end."""
        told = other.as_released().events
        if (self.recipe, self.events[: len(told)]) != (other.recipe, told):
            return False
        asked, here = (
            dict(events[0].records) if events and isinstance(events[0], Forget) else {}
            for events in (other.events[len(told) :], self.events[len(told) :])
        )
        return all(here.get(batch, 0) >= count for batch, count in asked.items())

    def forgotten(self) -> int:
        """Return how many records were forgotten so far."""
        return sum(self.by_batch().values())

    def by_batch(self) -> dict[int, int]:
        """Return how many records of each batch were forgotten so far."""
        forgotten: dict[int, int] = {}
        for event in self.events:
            if isinstance(event, Forget):
                for batch, count in event.records:
                    forgotten[batch] = forgotten.get(batch, 0) + count
        return forgotten

    def walk(self) -> Iterator[tuple[Event, int, dict[int, int]]]:
        """Yield each event, the steps before it, and by batch the forgotten records still there."""
        present, position = self.by_batch(), 0
        for event in self.events:
            yield event, position, present
            if isinstance(event, Steps):
                position += event.count
            elif isinstance(event, Forget):
                gone = dict(event.records)
                left = ((batch, count - gone.get(batch, 0)) for batch, count in present.items())
                present = {batch: count for batch, count in left if count}

    @property
    def furthest(self) -> float:
        """What the norm of the weights exceeds with chance below 2^-58; infinite without a radius.

        The last step projected them, and releases added noise since.
        """
        added: list[float] = []
        for event in reversed(self.events):
            if isinstance(event, Steps) and self.recipe.radius is not None:
                noise = noise_norm(
                    dimension=self.recipe.dimension or 0, noise_std=math.hypot(*added)
                )
                return self.recipe.radius + noise
            if isinstance(event, Release):
                added.append(event.noise_std)
        return math.inf

    def noise_std(self) -> float:
        """Return the standard deviation that all noise so far leaves in one weight."""
        rate, variance = self.recipe.contraction, 0.0
        for event in self.events:
            if isinstance(event, Release):
                variance += event.noise_std**2
            elif isinstance(event, Steps):
                gained = geometric_sum(rate * rate, event.count) * event.noise_std**2
                variance = power(rate, event.count) ** 2 * variance + gained
        return math.sqrt(variance)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        recipe = asdict(self.recipe) | {"neighbours": self.recipe.neighbours.value}
        return {"recipe": recipe, "events": [_event_to_json(event) for event in self.events]}

    @classmethod
    def from_json(cls, document: object) -> "History":
        """Return the history that ``to_json`` wrote, or raise ``ParameterError``."""
        if not isinstance(document, Mapping) or set(document) != {"recipe", "events"}:
            raise ParameterError("history", "an object with recipe and events")
        recipe, events = document["recipe"], document["events"]
        if not isinstance(recipe, Mapping):
            raise ParameterError("recipe", "an object")
        if not isinstance(events, list | tuple) or len(events) > MOST_EVENTS:
            raise ParameterError("events", f"a list of at most {MOST_EVENTS}")
        try:
            constants = Recipe(**recipe)
        except (TypeError, ValueError) as error:
            if isinstance(error, ParameterError):
                raise
            raise ParameterError("recipe", "the fields that to_json writes") from error
        return cls(recipe=constants, events=tuple(_event(entry) for entry in events))


def _check_noise(noise_std: float) -> None:
    if require_non_negative("noise_std", noise_std) > 0:
        require_noise("noise_std", noise_std)


def _check_request(event: Forget, recipe: Recipe) -> None:
    batches = [batch for batch, _ in event.records]
    if batches != sorted(set(batches)):
        raise ParameterError("records", "each batch once, in order")
    for batch, count in event.records:
        whole = all(isinstance(x, int) and not isinstance(x, bool) for x in (batch, count))
        if not whole or not 0 <= batch < recipe.batches:
            raise ParameterError("records", f"counts by batch number below {recipe.batches}")
        if not 1 <= count <= recipe.batch_size:
            raise ParameterError("records", f"1 to {recipe.batch_size} records of a batch")


def _event_to_json(event: Event) -> dict[str, Any]:
    if isinstance(event, Steps):
        return {"steps": event.count, "noise_std": event.noise_std}
    if isinstance(event, Release):
        return {"release": event.noise_std}
    return {"forget": [list(pair) for pair in event.records]}


def _event(entry: object) -> Event:
    if isinstance(entry, Mapping):
        if set(entry) == {"steps", "noise_std"}:
            return Steps(require_steps("steps", entry["steps"]), entry["noise_std"])
        if set(entry) == {"release"}:
            return Release(entry["release"])
        if set(entry) == {"forget"}:
            return Forget(tuple(_pairs(entry["forget"])))
    raise ParameterError(
        "events",
        "a list of {'steps': n, 'noise_std': s}, {'release': s} and {'forget': [[batch, count]]}",
    )


def _pairs(pairs: object) -> Iterator[tuple[int, int]]:
    if not isinstance(pairs, list | tuple):
        raise ParameterError("forget", "a list of pairs")
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ParameterError("forget", "a list of pairs")
        if not all(isinstance(number, int) for number in pair):
            raise ParameterError("forget", "whole numbers")
        yield cast("tuple[int, int]", tuple(pair))
