"""Every error that Expunge raises on purpose, on one page.

One root, subclasses by cause, typed attributes, no HTTP status: those are in
``app/api/protocol/errors.py``. Messages may name fields, rows and counts. They never hold record
content, weights, noise or keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class ExpungeError(Exception):
    """Root of all errors raised on purpose."""


# Numbers and guarantees


class ParameterError(ExpungeError, ValueError):
    """A parameter lies outside the range for which a theorem holds.

    Attributes:
        name: the parameter, spelt as in every interface.
        allowed: its range, in words or as an inequality.
    """

    def __init__(self, name: str, allowed: str) -> None:
        super().__init__(f"{name} must be {allowed}")
        self.name = name
        self.allowed = allowed

    def __reduce__(self) -> tuple[type["ParameterError"], tuple[str, str]]:
        """Return what rebuilds it in another process."""
        return type(self), (self.name, self.allowed)


class CalibrationError(ExpungeError):
    """A search for parameters that meet a target did not converge or cannot succeed."""


class TargetNotMetError(ExpungeError):
    """Sealed weights were asked for before the guarantee met its target."""


class SealedStateError(ExpungeError):
    """Someone tried to copy, save, print or send uncertified weights."""


class WriteRefusedError(SealedStateError, PermissionError):
    """Something tried to reach a disk or the network while weights were under their target."""


class PlanError(ExpungeError):
    """No plan satisfies the policy. The message says what to change."""


class TooCostlyError(ExpungeError):
    """A call takes more time or memory than one call may."""


class OverloadedError(ExpungeError):
    """The service does as much at once as it may; nothing is wrong with the call."""


# Things that are not there, or already are


class NotFoundError(ExpungeError):
    """A named thing does not exist.

    Attributes:
        kind: what was looked for, such as ``model``.
        name: the name or id given by the caller.
    """

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"no {kind} named {name!r}")
        self.kind = kind
        self.name = name


class ConflictError(ExpungeError):
    """The request contradicts the present state."""


class CallInFlightError(ConflictError):
    """A call under the same idempotency key has no answer yet.

    Attributes:
        retry_after_s: when to ask again.
    """

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("a call with this Idempotency-Key is still going on")
        self.retry_after_s = retry_after_s


class GoneError(ExpungeError):
    """A thing existed and was removed: a version that was retired or withdrawn, say."""


class PreconditionError(ExpungeError):
    """The caller holds another state of the thing than the one that is there."""


class RangeError(ExpungeError):
    """The requested part begins after the end.

    Attributes:
        size: of the whole, in bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f"the content has {size} bytes; the range begins behind them")
        self.size = size


class NotReadyError(ExpungeError):
    """The thing will exist later: a version that is still being certified, say."""


# Bad input


class InvalidInputError(ExpungeError, ValueError):
    """Input that cannot be accepted; nothing was stored."""


@dataclass(frozen=True)
class RowProblem:
    """One fault in an uploaded table. ``row`` counts from 0; None means the whole column."""

    row: int | None
    column: str
    reason: str


class InvalidRecordsError(InvalidInputError):
    """Uploaded records were refused as a whole.

    Attributes:
        problems: the first faults found, by row and column.
        count: how many faults there are altogether.
    """

    def __init__(self, problems: Sequence[RowProblem], count: int) -> None:
        first = problems[0]
        where = f"row {first.row}, " if first.row is not None else ""
        super().__init__(
            f"{count} problem(s); the first: {where}column {first.column!r}: {first.reason}"
        )
        self.problems = tuple(problems)
        self.count = count


class UnknownRecordsError(InvalidInputError):
    """A forget request names records or subjects that the dataset never held.

    Attributes:
        count: how many of the ids are unknown.
        examples: up to 20 of them, as the caller spelt them. For the answer to that caller only.
    """

    def __init__(self, count: int, examples: Sequence[str]) -> None:
        super().__init__(f"{count} of the ids are unknown to this dataset")
        self.count = count
        self.examples = tuple(examples)


class IdempotencyKeyReusedError(InvalidInputError):
    """An idempotency key came back with another body."""


class UnreadableError(InvalidInputError):
    """A body cannot be read at all."""


class PayloadTooLargeError(InvalidInputError):
    """The body exceeds the configured limit."""


class UnsupportedMediaTypeError(InvalidInputError):
    """The body is of a kind that is not taken here."""


# Access


class UnauthenticatedError(ExpungeError):
    """No credentials came with the request."""


class InvalidCredentialsError(UnauthenticatedError):
    """Credentials came, but they are not valid: unknown, revoked, forged or meant for others."""


class ExpiredCredentialsError(InvalidCredentialsError):
    """The credentials were valid and have expired."""


class IssuerUnavailableError(ExpungeError):
    """A token cannot be checked now, because its issuer's keys cannot be fetched."""


class TooManyRequestsError(ExpungeError):
    """A limit of calls or of failed attempts has been reached.

    Attributes:
        retry_after_s: when to try again, in whole seconds from now.
    """

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SlowRequestError(ExpungeError):
    """A request came more slowly than the service waits for it."""


class ForbiddenError(ExpungeError):
    """The caller is known but lacks a scope.

    Attributes:
        scope: the missing scope.
    """

    def __init__(self, scope: str) -> None:
        super().__init__(f"this caller lacks the scope {scope}")
        self.scope = scope


# Running


class LeaseLostError(ExpungeError):
    """Another worker holds the run now; this one must stop without a trace."""


class DraftOutdatedError(ExpungeError):
    """The result to publish has changed since its check; it must be drafted again."""


class RunInterruptedError(ExpungeError):
    """The worker was asked to stop in the middle of a run; the run waits for another worker."""


class RunFailedError(ExpungeError):
    """A run cannot succeed by trying again. The message tells a user what to do."""


class ConfigurationError(ExpungeError):
    """A setting, key or server is missing. The message says how to supply it."""


# Storing


class ObjectStoreError(ExpungeError):
    """The object store cannot do now what was asked of it; it may later."""


class KeyStoreError(ExpungeError):
    """The key store cannot do what was asked of it: its files or its disk are at fault."""


class CorruptObjectError(ExpungeError):
    """A stored object is not what was stored: cut, changed, moved, or another's."""


# Calling back


class CallbackError(ExpungeError):
    """A callback cannot be delivered. The message says why, and never names the address."""


# Downloading


class DownloadError(ExpungeError):
    """A download was not completed. The message says whether to try again."""


# Checking certificates and the log


class ProofError(ExpungeError):
    """A proof about a Merkle tree does not show what it should."""


class NoteError(ExpungeError):
    """A signed note or checkpoint is malformed, or not signed by the key it should be."""


class CorruptLogError(ExpungeError):
    """The log's tables contradict each other: ``expunge log fsck`` says where."""


class VerificationError(ExpungeError):
    """A certificate did not pass.

    Attributes:
        step: the verification step that failed.
    """

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
