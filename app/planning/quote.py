"""A quote: what a mechanism would do for a policy and a model, what it costs and what it gives."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from app.accounting.guarantees import Guarantee
from app.accounting.histories.history import History
from app.domain import schedules
from app.domain.plan import TrainingKind


@dataclass(frozen=True)
class Quote:
    """One mechanism's offer.

    Attributes:
        parameters: Keyword arguments of the accountant, all of them.
        guarantee: What they give; it meets the policy's target.
        certifying_gradients: Per-record gradients that the guarantee takes.
        gradient_computations: Per-record gradients of the whole run, fine-tuning included.
        noise_per_coordinate: Standard deviation of the noise in the released weights, in the
            coordinates in which the mechanism works; 0 without noise.
        surviving_information_bits: What the release can tell of the original model, where the
            guarantee bounds that: under ``any_start`` for GDP, and 0 for retraining.
        capacity: How many more records the run's release will cover without another run, at the
            worst position in its training. Null where it covers no later request.
        settings: what the update rule needs and the guarantee does not depend on.
        training: how the lineage is, or was, trained.
        history: the lineage's up to the new request; None where none is tracked.
    """

    mechanism: str
    parameters: Mapping[str, Any]
    guarantee: Guarantee
    certifying_gradients: float
    gradient_computations: float
    noise_per_coordinate: float = 0.0
    surviving_information_bits: float | None = None
    capacity: int | None = None
    settings: Mapping[str, float] = field(default_factory=dict)
    training: TrainingKind = TrainingKind.RECIPE
    history: History | None = None

    def describe(self, *, delta: float) -> dict[str, Any]:
        """Return the offer as plain JSON values, its epsilon taken at ``delta``."""
        terms = self.guarantee.terms
        return {
            "mechanism": self.mechanism,
            "parameters": schedules.to_json(self.parameters),
            "guarantee": {
                "epsilon": self.guarantee.epsilon(delta=delta),
                "delta": delta,
                "attacker_advantage": self.guarantee.advantage(),
                "neighbouring_relation": str(terms.neighbours),
                "adaptive": terms.adaptive,
                "source": terms.source,
            },
            "certifying_gradients": self.certifying_gradients,
            "gradient_computations": self.gradient_computations,
            "noise_per_coordinate": self.noise_per_coordinate,
            "surviving_information_bits": self.surviving_information_bits,
            "capacity": self.capacity,
        }


@dataclass(frozen=True)
class Declined:
    """A mechanism that does not apply, and why."""

    mechanism: str
    reason: str


@dataclass(frozen=True)
class Quotes:
    """Every mechanism's answer, and the choice of ``auto``, if any applies."""

    offers: tuple[Quote, ...]
    declined: tuple[Declined, ...]
    choice: str | None = field(default=None)

    def describe(self, *, delta: float) -> dict[str, Any]:
        """Return all answers as plain JSON values."""
        return {
            "choice": self.choice,
            "quotes": [quote.describe(delta=delta) for quote in self.offers],
            "declined": [asdict(declined) for declined in self.declined],
        }

    def offer(self, mechanism: str) -> Quote | None:
        """Return the offer of one mechanism, or None."""
        return next((quote for quote in self.offers if quote.mechanism == mechanism), None)

    def reason(self, mechanism: str) -> str:
        """Return why a mechanism does not apply."""
        return next(
            (declined.reason for declined in self.declined if declined.mechanism == mechanism),
            "this mechanism does not exist",
        )
