"""Every error that Expunge raises on purpose.

One root, subclasses by cause, typed attributes. HTTP statuses are mapped in
``app/api/protocol/errors.py``. Messages may name fields, rows and counts, but never record content,
weights, noise or keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class ExpungeError(Exception):
    """Root of all errors raised on purpose."""


# Numbers and guarantees


class ParameterError(ExpungeError, ValueError):
    """A parameter lies outside the range for which a theorem holds.

    Attributes:
        name: the parameter's name, the same in every interface.
        allowed: its range, in words or as an inequality.
    """

    def __init__(self, name: str, allowed: str) -> None:
        super().__init__(f"{name} must be {allowed}")
        self.name = name
        self.allowed = allowed

    def __reduce__(self) -> tuple[type["ParameterError"], tuple[str, str]]:
        """Make the error picklable."""
        return type(self), (self.name, self.allowed)


class CalibrationError(ExpungeError):
    """A search for parameters that meet a target did not converge or cannot succeed."""


class TargetNotMetError(ExpungeError):
    """Sealed weights were requested before the guarantee met its target."""


class SealedStateError(ExpungeError):
    """Code tried to copy, save, print or send uncertified weights."""


class WriteRefusedError(SealedStateError, PermissionError):
    """Code tried to write to disk or network while that could have left weights or records."""


class PlanError(ExpungeError):
    """No plan satisfies the policy. The message says what to change."""


class TooCostlyError(ExpungeError):
    """A call would exceed the time or memory allowed for one call."""


class OverloadedError(ExpungeError):
    """The service is at capacity; the call itself is valid."""


# Missing or conflicting resources


class NotFoundError(ExpungeError):
    """A named resource does not exist."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"no {kind} named {name!r}")
        self.kind = kind
        self.name = name


class ConflictError(ExpungeError):
    """The request conflicts with the current state."""


class PublicDatasetError(ConflictError):
    """Records of a public dataset are not forgotten: public weights may rest on them."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"dataset {name!r} is public: its owner asserts that nobody can ask for its records to "
            "be forgotten, and public weights may rest on them"
        )


class CallInFlightError(ConflictError):
    """An earlier call with the same idempotency key has not finished."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("a call with this Idempotency-Key is still in progress")
        self.retry_after_s = retry_after_s


class GoneError(ExpungeError):
    """A resource existed and was removed, for example a retired or withdrawn version."""


class PreconditionError(ExpungeError):
    """The caller expected a state other than the current one."""


class RangeError(ExpungeError):
    """The requested range begins after the end of the content."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the content has {size} bytes; the range begins after its end")
        self.size = size


class NotReadyError(ExpungeError):
    """The resource will exist later, for example a version whose run has not finished."""


# Bad input


class InvalidInputError(ExpungeError, ValueError):
    """Input that is not accepted; nothing was stored."""


@dataclass(frozen=True)
class RowProblem:
    """One error in a table.

    Attributes:
        row: the first row that has it, counted from 0; None means the whole column.
        column: the column.
        reason: what is wrong with it; never a value.
        rows: how many rows have it.
    """

    row: int | None
    column: str
    reason: str
    rows: int = 1

    def about(self, record: str) -> str:
        """Return the problem in words; ``record`` is the caller's name for its first row."""
        others = f" and {self.rows - 1} more" if self.rows > 1 else ""
        return f"{record}{others}, column {self.column!r}: {self.reason}"


@dataclass(frozen=True)
class FileProblem(RowProblem):
    """One error in a file of an import.

    Attributes:
        file: its name.
    """

    file: str = ""


class InvalidRecordsError(InvalidInputError):
    """Uploaded records were rejected as a whole; ``problems`` are the first of ``count`` errors."""

    def __init__(self, problems: Sequence[RowProblem], count: int) -> None:
        first = problems[0]
        where = f"row {first.row}, " if first.row is not None else ""
        super().__init__(
            f"{count} problem(s); the first: {where}column {first.column!r}: {first.reason}"
        )
        self.problems = tuple(problems)
        self.count = count


class UnreadableRecordsError(InvalidRecordsError):
    """A task, perhaps the operator's own, cannot encode some records; only places are told."""

    def __init__(self, column: str, rows: Sequence[int]) -> None:
        reason = "the task cannot read it"
        super().__init__([RowProblem(row, column, reason) for row in rows[:20]], len(rows))


class TableError(InvalidInputError):
    """A table on the owner's side cannot be used.

    Attributes:
        lines: each fault in a line, with file, row and column where they are known.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class UnknownRecordsError(InvalidInputError):
    """A forget request names records or subjects that the dataset never held.

    ``examples`` are up to 20 of them, as the caller wrote them; only for the answer to that caller.
    """

    def __init__(self, count: int, examples: Sequence[str]) -> None:
        super().__init__(f"ids that are unknown to this dataset: {count}")
        self.count = count
        self.examples = tuple(examples)


class IdempotencyKeyReusedError(InvalidInputError):
    """An idempotency key was reused with another body."""


class UnreadableError(InvalidInputError):
    """A body cannot be parsed."""


class PayloadTooLargeError(InvalidInputError):
    """The body exceeds the configured limit."""


class PlaceNotAllowedError(InvalidInputError):
    """An import is asked for from outside of the operator's prefixes."""

    def __init__(self) -> None:
        super().__init__(
            "the url lies under none of the prefixes that this service imports from: its operator "
            "sets EXPUNGE_IMPORT_PREFIXES"
        )


class UnsupportedMediaTypeError(InvalidInputError):
    """The body's media type is not supported."""


# Access


class UnauthenticatedError(ExpungeError):
    """No credentials came with the request."""


class InvalidCredentialsError(UnauthenticatedError):
    """The credentials are invalid: unknown, revoked, forged or for another audience."""


class ExpiredCredentialsError(InvalidCredentialsError):
    """The credentials were valid and have expired."""


class IssuerUnavailableError(ExpungeError):
    """A token cannot be checked now because its issuer's keys cannot be fetched."""


class TooManyRequestsError(ExpungeError):
    """A limit of calls or of failed attempts has been reached."""

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ForbiddenError(ExpungeError):
    """The caller is known but lacks a scope."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"this caller lacks the scope {scope}")
        self.scope = scope


# Running


class LeaseLostError(ExpungeError):
    """Another worker holds the run now; this one must stop and leave no trace."""


class DraftOutdatedError(ExpungeError):
    """The result to publish changed after its check; it must be drafted again."""


class HeadMovedError(ExpungeError):
    """An ensemble's version before was replaced meanwhile; its members are put together again."""


class RunInterruptedError(ExpungeError):
    """The worker was asked to stop during a run; another worker will take the run over."""


class ProcessLostError(ExpungeError):
    """A process of a run on several devices ended, or never came; another attempt may succeed."""


class RunFailedError(ExpungeError):
    """A run cannot succeed by retrying. The message tells the user what to do."""


class ScoreTooLowError(RunFailedError):
    """A run's result misses the policy's ``minimum_score``."""


class ImportFailedError(ExpungeError):
    """An import cannot go on; ``problems`` name rows and columns, if it is a file's content.

    The message says what to do. It names files relative to the import's place, never a value.
    """

    def __init__(self, reason: str, problems: "Sequence[FileProblem]" = ()) -> None:
        super().__init__(reason)
        self.problems = tuple(problems)


class SourceUnavailableError(ExpungeError):
    """Where an import's files are does not answer now; it may later."""


class DecodingBrokeOffError(ExpungeError):
    """The process that decodes an import's file was killed or crashed; another one may succeed."""


class ConfigurationError(ExpungeError):
    """A setting, key or server is missing. The message says how to supply it."""


class MissingExtraError(ExpungeError):
    """A library is not installed.

    Attributes:
        library: which one.
        extra: the extra of the package that brings it.
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed: pip install 'expunge[{extra}]'")
        self.library = library
        self.extra = extra


# Storing


class ObjectStoreError(ExpungeError):
    """The object store cannot serve an operation now; it may later."""


class KeyStoreError(ExpungeError):
    """The key store failed: its files or its disk are faulty."""


class KeyServiceError(ExpungeError):
    """The service that wraps the key store's keys does not answer, or refuses; it may later."""


class CorruptObjectError(ExpungeError):
    """A stored object is not what was written: truncated, changed, moved or swapped."""


# Calling back


class CallbackError(ExpungeError):
    """A callback cannot be delivered. The message says why and never contains the address."""


# Publishing elsewhere


class TargetError(ExpungeError):
    """A place where versions are published refuses, or does not answer; it is tried again.

    The message says why and never where.
    """


class PlaceTakenError(TargetError):
    """What is at a model's place is somebody else's, and nothing of the model is there."""


class UnmarkedPlaceError(TargetError):
    """What is at a model's place does not say whose it is."""


# Downloading


class DownloadError(ExpungeError):
    """A download did not complete. The message says whether to retry."""


# Checking certificates and the log


class ProofError(ExpungeError):
    """A Merkle proof does not prove its claim."""


class NoteError(ExpungeError):
    """A signed note or checkpoint is malformed, or not signed by the expected key."""


class CorruptLogError(ExpungeError):
    """The log's tables are inconsistent: ``expunge log fsck`` says where."""


class VerificationError(ExpungeError):
    """A certificate did not pass."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
