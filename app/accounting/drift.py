"""The drift ledger: how far the forgotten records can have moved the weights of one lineage.

Training visits a fixed partition of the records cyclically, one batch a step (MATH.md 5b). A pass
over batch j while k of the forgotten records in it are still present in the real world does

    D <- c D + k s          s = kappa learning_rate lipschitz / batch_size

any other step does D <- c D, and D never exceeds 2 radius where weights are projected. The ledger
holds what happened (``train`` for any steps, ``forget`` for requests), never record ids, so anyone
can compute the drift again. It always speaks of the union of all records forgotten so far.

Neighbouring relation: zero_out (s with kappa = 1) or replacement (kappa = 2).
Source: Chien et al. 2024, Lemma 3.3, Theorem 3.11 and Corollary J.1, counted step by step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from app.accounting.strong_convexity import contraction, gradient_shift
from app.accounting.terms import Neighbours
from app.domain.checks import require_positive, require_steps
from app.domain.errors import ParameterError

# Covers the rounding of a geometric sum and of the powers in it.
_ROUNDING = 1e-12
_SMALLEST = 1e-290


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
        radius: R of the ball to which weights are projected, or None.
    """

    learning_rate: float
    weight_decay: float
    smoothness: float
    lipschitz: float
    batch_size: int
    batches: int
    neighbours: Neighbours = Neighbours.ZERO_OUT
    radius: float | None = None

    def __post_init__(self) -> None:
        require_steps("batch_size", self.batch_size)
        require_steps("batches", self.batches)
        if self.radius is not None:
            require_positive("radius", self.radius)
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
        """s: how far one record moves one step over its batch."""
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
    """So many optimisation steps, going on in the cycle where the last ones stopped."""

    count: int

    def __post_init__(self) -> None:
        require_steps("steps", self.count)


@dataclass(frozen=True)
class Forget:
    """A request: so many records of each batch leave (batch number to count)."""

    records: tuple[tuple[int, int], ...]


Event = Steps | Forget


@dataclass(frozen=True)
class DriftLedger:
    """What happened to one lineage, from its start.

    Attributes:
        recipe: the constants.
        events: steps and requests, in order.
    """

    recipe: Recipe
    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        for event in self.events:
            if isinstance(event, Forget):
                _check_request(event, self.recipe)
        if max(self.still_present(0)) > self.recipe.batch_size:
            raise ParameterError("records", f"at most {self.recipe.batch_size} of one batch")

    def after_steps(self, count: int) -> "DriftLedger":
        """Return the ledger after ``count`` more steps (0 changes nothing)."""
        if count == 0:
            return self
        return DriftLedger(recipe=self.recipe, events=(*self.events, Steps(count)))

    def after_request(self, records: Mapping[int, int]) -> "DriftLedger":
        """Return the ledger after a request for ``records`` (batch number to how many)."""
        event = Forget(tuple(sorted(records.items())))
        return DriftLedger(recipe=self.recipe, events=(*self.events, event))

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return sum(event.count for event in self.events if isinstance(event, Steps))

    def forgotten(self) -> int:
        """Return how many records were forgotten so far."""
        return sum(self.still_present(0))

    def drift(self) -> float:
        """Return D for the union of all records forgotten so far, rounded up.

        Cost: grows with the number of events and batches touched, not with the number of steps.
        """
        recipe = self.recipe
        drift, position = 0.0, 0
        for index, event in enumerate(self.events):
            if isinstance(event, Steps):
                present = self.still_present(index)
                drift = _walk(recipe, drift, position, event.count, present)
                position = (position + event.count) % recipe.batches
        return drift * (1 + _ROUNDING)

    def still_present(self, index: int) -> list[int]:
        """Return, by batch, how many records forgotten by now were still there at an event."""
        present = [0] * self.recipe.batches
        for event in self.events[index:]:
            if isinstance(event, Forget):
                for batch, count in event.records:
                    present[batch] += count
        return present

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as plain JSON values."""
        recipe = self.recipe
        events: list[dict[str, Any]] = [
            {"steps": event.count}
            if isinstance(event, Steps)
            else {"forget": [list(pair) for pair in event.records]}
            for event in self.events
        ]
        return {
            "learning_rate": recipe.learning_rate,
            "weight_decay": recipe.weight_decay,
            "smoothness": recipe.smoothness,
            "lipschitz": recipe.lipschitz,
            "batch_size": recipe.batch_size,
            "batches": recipe.batches,
            "neighbours": recipe.neighbours.value,
            "radius": recipe.radius,
            "events": events,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "DriftLedger":
        """Return the ledger that ``to_json`` wrote.

        Raises:
            ParameterError: a field is missing, unknown, malformed or out of range.
        """
        if not isinstance(data, Mapping):
            raise ParameterError("ledger", "an object with the fields that to_json writes")
        fields = dict(data)
        events = fields.pop("events", None)
        if not isinstance(events, Sequence) or isinstance(events, str):
            raise ParameterError("events", "a list of steps and requests")
        try:
            recipe = Recipe(**fields)
        except (TypeError, ValueError) as error:
            if isinstance(error, ParameterError):
                raise
            raise ParameterError("drift ledger", "the fields that to_json writes") from error
        return cls(recipe=recipe, events=tuple(_event(entry) for entry in events))


def worst_case_drift(*, recipe: Recipe, records: int = 1) -> float:
    """Return Z for ``records`` records: the drift after training of any length, rounded up.

    Z = kappa (learning_rate lipschitz / b) / (1 - c^(n/b)) a record, with all of them in the batch
    that was visited last (Chien et al. 2024, Lemma 3.3; Corollary J.1 with its exponents mended).

    Raises:
        ParameterError: weight_decay is 0 without a radius, so that the drift has no bound.
    """
    records = require_steps("records", records)
    rate = recipe.contraction
    if rate == 1:
        if recipe.radius is None:
            raise ParameterError("weight_decay", "above 0 where no radius bounds the weights")
        return recipe.cap
    left = -math.expm1(recipe.batches * _log(rate))
    return min(recipe.cap, records * recipe.shift / left * (1 + _ROUNDING))


def _check_request(event: Forget, recipe: Recipe) -> None:
    for batch, count in event.records:
        whole = all(isinstance(x, int) and not isinstance(x, bool) for x in (batch, count))
        if not whole or not 0 <= batch < recipe.batches:
            raise ParameterError("records", f"counts by batch number below {recipe.batches}")
        if not 1 <= count <= recipe.batch_size:
            raise ParameterError("records", f"1 to {recipe.batch_size} records of a batch")


def _event(entry: object) -> Event:
    if isinstance(entry, Mapping) and set(entry) == {"steps"}:
        return Steps(require_steps("steps", entry["steps"]))
    if isinstance(entry, Mapping) and set(entry) == {"forget"}:
        pairs = entry["forget"]
        if isinstance(pairs, Sequence) and all(
            isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs
        ):
            return Forget(tuple(cast("tuple[int, int]", tuple(pair)) for pair in pairs))
    raise ParameterError("events", "a list of {'steps': n} and {'forget': [[batch, count], ...]}")


def _walk(recipe: Recipe, drift: float, start: int, count: int, present: list[int]) -> float:
    """Return the drift after ``count`` steps that begin at batch ``start`` of the cycle."""
    cycles, rest = divmod(count, recipe.batches)
    if cycles > 0:
        drift = _whole_cycles(recipe, drift, start, cycles, present)
    return _one_pass(recipe, drift, start, rest, present)


def _one_pass(recipe: Recipe, drift: float, start: int, count: int, present: list[int]) -> float:
    """Walk at most one cycle, step by step."""
    rate, shift, cap = recipe.contraction, recipe.shift, recipe.cap
    for step in range(count):
        drift = min(cap, rate * drift + shift * present[(start + step) % recipe.batches])
    return drift


def _whole_cycles(
    recipe: Recipe, drift: float, start: int, cycles: int, present: list[int]
) -> float:
    """Return the drift after whole cycles: a geometric sum, capped once at its end.

    Capping at the end alone bounds capping at every step from above.
    """
    length, rate = recipe.batches, recipe.contraction
    gained = 0.0
    for step in range(length):
        gained = rate * gained + recipe.shift * present[(start + step) % length]
    if rate == 1:
        return min(recipe.cap, drift + cycles * gained)
    exponent = length * _log(rate)
    total = -math.expm1(cycles * exponent) / -math.expm1(exponent)
    kept = math.exp(cycles * exponent) * drift
    if drift > 0:
        kept = max(kept, _SMALLEST)
    return min(recipe.cap, kept + total * gained)


def _log(rate: float) -> float:
    """Return log(rate) for 0 < rate < 1 without losing digits near 1."""
    return math.log1p(-(1 - rate)) if rate > 0.5 else math.log(rate)
