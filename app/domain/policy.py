"""A model's policy: the guarantee, the deadline and the cost of a forget request."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from app.domain.checks import (
    is_number,
    require_delta,
    require_non_negative,
    require_positive,
    require_steps,
)
from app.domain.errors import InvalidInputError, ParameterError
from app.domain.recipes import MOST_EPOCHS
from app.domain.schedules import Schedule, require_schedules, to_json
from app.domain.states import FirstRelease, Forgetting, Serving

AUTO = "auto"
DAY_S = 24 * 3600.0
THIRTY_DAYS_S = 30 * 24 * 3600
TEN_YEARS_S = 10 * 365 * 24 * 3600
_SHORTEST_INTERVAL_S = 60


class Target(TypedDict):
    """What a guarantee has to imply."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Policy:
    """Target, mechanism, deadline and budget.

    Attributes:
        epsilon: the certified target's ε, with ``delta``: how well two worlds may be told apart.
        delta: the certified target's δ.
        mechanism: a mechanism's name, or ``auto``.
        parameters: mechanism parameters fixed by the operator, each one number or, if the mechanism
            supports schedules, one number per step; planning chooses the others.
        adaptive: whether requests may depend on earlier releases.
        first_release: what is published before the first forget request.
        serving: what is served while obligations are open.
        window_s: how long to wait for more requests before a run starts.
        deadline_s: time from receipt after which a request is overdue.
        budget_epochs: gradient budget of one run in passes over the retained records, noisy steps
            included; without it, as many as the training recipe has, or as a later release needs.
        minimum_score: the worst score on held-out records, of the metric that is shown first, with
            which a run is published: accuracy at least, errors and perplexity at most so much. A
            run that misses it fails, and what is served stays as it is; None publishes every run.
        retrain_every_s: how long after the beginning of a training the next one begins by itself;
            None for never.
        retrain_after_records: how many new records start a training by themselves; None for never.
        forget: how an ensemble forgets: ``leave_out`` releases it without the members concerned,
            ``retrain`` trains these anew.
        minimum_members: how many members of an ensemble stay active at least: a request that leaves
            fewer has as many trained as are missing. None for half of them, rounded up.
        refill_after_s: how long after a member was left out the members that are out are trained
            anew, all together; None for never.
        refill_at: the share of the members that may be out before that is done at once; None for
            any.
    """

    epsilon: float = field(default=1.0, metadata={"exclusiveMinimum": 0})
    delta: float = field(default=1e-5, metadata={"exclusiveMinimum": 0, "exclusiveMaximum": 1})
    mechanism: str = "auto"
    parameters: Mapping[str, Schedule] = field(default_factory=dict)
    adaptive: bool = False
    first_release: FirstRelease = FirstRelease.CERTIFY
    serving: Serving = Serving.SERVE_UNTIL_REPLACED
    window_s: float = field(default=0.0, metadata={"minimum": 0})
    deadline_s: float = field(default=THIRTY_DAYS_S, metadata={"exclusiveMinimum": 0})
    budget_epochs: float | None = None
    minimum_score: float | None = None
    retrain_every_s: float | None = field(default=None, metadata={"minimum": _SHORTEST_INTERVAL_S})
    retrain_after_records: int | None = field(default=None, metadata={"minimum": 1})
    forget: Forgetting = Forgetting.LEAVE_OUT
    minimum_members: int | None = field(default=None, metadata={"minimum": 1})
    refill_after_s: float | None = field(default=DAY_S, metadata={"minimum": 0})
    refill_at: float | None = field(default=0.25, metadata={"exclusiveMinimum": 0, "maximum": 1})

    def __post_init__(self) -> None:
        """Reject numbers that no plan could meet."""
        require_positive("epsilon", self.epsilon)
        require_delta(self.delta)
        object.__setattr__(self, "parameters", require_schedules(self.parameters))
        require_non_negative("window_s", self.window_s)
        require_positive("deadline_s", self.deadline_s)
        if self.budget_epochs is not None:
            require_positive("budget_epochs", self.budget_epochs)
        if self.minimum_score is not None and not is_number(self.minimum_score):
            raise ParameterError("minimum_score", "a finite number")
        if self.deadline_s > TEN_YEARS_S:
            raise ParameterError("deadline_s", f"at most {TEN_YEARS_S} (ten years)")
        if self.budget_epochs is not None and self.budget_epochs > MOST_EPOCHS:
            raise ParameterError("budget_epochs", f"at most {MOST_EPOCHS}")
        if self.window_s > self.deadline_s:
            raise InvalidInputError("window_s must not exceed deadline_s")
        if self.retrain_every_s is not None and not (
            _SHORTEST_INTERVAL_S
            <= require_positive("retrain_every_s", self.retrain_every_s)
            <= TEN_YEARS_S
        ):
            allowed = f"{_SHORTEST_INTERVAL_S} (a minute) to {TEN_YEARS_S} (ten years)"
            raise ParameterError("retrain_every_s", allowed)
        if self.retrain_after_records is not None:
            require_steps("retrain_after_records", self.retrain_after_records)
        self._check_members()

    def _check_members(self) -> None:
        if self.minimum_members is not None:
            require_steps("minimum_members", self.minimum_members)
        if self.refill_after_s is not None and not (
            require_non_negative("refill_after_s", self.refill_after_s) <= TEN_YEARS_S
        ):
            raise ParameterError("refill_after_s", f"at most {TEN_YEARS_S} (ten years)")
        if self.refill_at is not None and require_positive("refill_at", self.refill_at) > 1:
            raise ParameterError("refill_at", "at most 1")

    def fewest(self, members: int) -> int:
        """How many of an ensemble's members stay active at least."""
        return min(members, self.minimum_members or -(-members // 2))

    @property
    def target(self) -> Target:
        """The certified target."""
        return {"epsilon": self.epsilon, "delta": self.delta}

    @property
    def retrains(self) -> bool:
        """Whether the model is to be trained again by itself."""
        return self.retrain_every_s is not None or self.retrain_after_records is not None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"parameters": to_json(self.parameters)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Policy":
        """Read what ``to_json`` wrote."""
        values = dict(document)
        values["first_release"] = FirstRelease(values["first_release"])
        values["serving"] = Serving(values["serving"])
        values["forget"] = Forgetting(values["forget"])
        return cls(**values)
