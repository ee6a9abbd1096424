"""Closed lists: states of requests, runs and versions, options of a policy, callers' scopes."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class RequestState(StrEnum):
    """accepted -> unlearning -> certified -> completed; or failed, or cancelled.

    One that a person has to decide on is received first; then accepted or refused.
    """

    RECEIVED = "received"
    REFUSED = "refused"
    ACCEPTED = "accepted"
    UNLEARNING = "unlearning"
    CERTIFIED = "certified"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED_REQUEST_STATES = (RequestState.COMPLETED, RequestState.CANCELLED)
"""Final states; a failed request may still be retried, a refused one reopened."""


class Ground(StrEnum):
    """Why a request is refused: a paragraph of GDPR Art. 17(3), or as the explanation says."""

    EXPRESSION = "17(3)(a)"
    LEGAL_OBLIGATION = "17(3)(b)"
    PUBLIC_HEALTH = "17(3)(c)"
    ARCHIVES_AND_RESEARCH = "17(3)(d)"
    LEGAL_CLAIMS = "17(3)(e)"
    OTHER = "other"


class SubjectRequestStatus(StrEnum):
    """The status of a data subject request, in the terms of OpenDSR 2.0, section 8."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class ObligationState(StrEnum):
    """The state of one request for one model."""

    OPEN = "open"
    RUNNING = "running"
    CERTIFIED = "certified"
    FAILED = "failed"
    CANCELLED = "cancelled"


WAITING_OBLIGATION_STATES = (ObligationState.OPEN, ObligationState.FAILED)
"""Of obligations that no run has taken on; whatever covers their records ends them."""

UNMET_OBLIGATION_STATES = (*WAITING_OBLIGATION_STATES, ObligationState.RUNNING)


class Basis(StrEnum):
    """Why an obligation ended, or why a certificate was issued."""

    CERTIFIED_RELEASE = "certified_release"
    UNLEARNED = "unlearned"
    EXCLUDED_FROM_TRAINING = "excluded_from_training"
    RELEASED_AS_TRAINED = "released_as_trained"


class RunKind(StrEnum):
    """The purpose of a run."""

    TRAIN = "train"
    CERTIFY = "certify"
    UNLEARN = "unlearn"
    REFILL = "refill"


class RunState(StrEnum):
    """queued -> leased -> running -> published; or failed, or cancelled."""

    QUEUED = "queued"
    LEASED = "leased"
    RUNNING = "running"
    PUBLISHED = "published"
    FAILED = "failed"
    CANCELLED = "cancelled"


HELD_RUN_STATES = (RunState.LEASED, RunState.RUNNING)
ACTIVE_RUN_STATES = (RunState.QUEUED, *HELD_RUN_STATES)
RETRYABLE_RUN_STATES = (RunState.FAILED, RunState.CANCELLED)


class ImportState(StrEnum):
    """queued -> running -> completed; or failed, or cancelled, from which it may go on."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE_IMPORT_STATES = (ImportState.QUEUED, ImportState.RUNNING)
RETRYABLE_IMPORT_STATES = (ImportState.FAILED, ImportState.CANCELLED)


class Phase(StrEnum):
    """The phase of a run, as shown to users."""

    LOADING = "loading"
    TRAINING = "training"
    UNLEARNING = "unlearning"
    FINE_TUNING = "fine_tuning"
    EVALUATING = "evaluating"
    PUBLISHING = "publishing"


_ARITHMETIC: Final = (Phase.TRAINING, Phase.UNLEARNING, Phase.FINE_TUNING)


def arithmetic_s(phase_seconds: Mapping[str, float] | None) -> float:
    """Return the seconds that a run computed for: what grows with records and gradients."""
    return sum((phase_seconds or {}).get(phase, 0.0) for phase in _ARITHMETIC)


class MemberState(StrEnum):
    """Of a member of an ensemble that a run trains anew."""

    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"


class VersionState(StrEnum):
    """private (never leaves the workers) or certified; then retired, then shredded."""

    PRIVATE = "private"
    CERTIFIED = "certified"
    RETIRED = "retired"
    SHREDDED = "shredded"


class BlobState(StrEnum):
    """pending while it is written, live while referenced, doomed when given up, then shredded."""

    PENDING = "pending"
    LIVE = "live"
    DOOMED = "doomed"
    SHREDDED = "shredded"


class FirstRelease(StrEnum):
    """What a model publishes before the first forget request."""

    CERTIFY = "certify"
    NONE = "none"
    AS_TRAINED = "as_trained"


class Serving(StrEnum):
    """What is served while obligations are open."""

    SERVE_UNTIL_REPLACED = "serve_until_replaced"
    WITHDRAW_ON_REQUEST = "withdraw_on_request"


class Forgetting(StrEnum):
    """How an ensemble forgets: without the members concerned, or with these trained anew."""

    LEAVE_OUT = "leave_out"
    RETRAIN = "retrain"


class WeightsSource(StrEnum):
    """Whether a model is trained here or its weights are imported."""

    TRAIN = "train"
    UPLOAD = "upload"


class Scope(StrEnum):
    """A permission of a key or token. ``admin`` includes all others.

    ``audit`` is for what ``expunge audit`` does: in datasets that its caller has defined.
    """

    FORGET_WRITE = "forget:write"
    FORGET_READ = "forget:read"
    MODELS_READ = "models:read"
    MODELS_WRITE = "models:write"
    DATA_WRITE = "data:write"
    LOG_READ = "log:read"
    AUDIT = "audit"
    ADMIN = "admin"


class Verdict(StrEnum):
    """What an audit says of a certificate."""

    CONSISTENT = "consistent"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"


MOST_DEVICES: Final = 64


class Parallelism(StrEnum):
    """What each of several processes held.

    ``none``: there was one process. ``full_shard``: weights, gradients, the optimiser's state, the
    noisy position and its noise were divided (PyTorch's name for the third stage of ZeRO).
    """

    NONE = "none"
    FULL_SHARD = "full_shard"
