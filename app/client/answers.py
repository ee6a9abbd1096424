"""The service's answers, as the client returns them; made by ``make client-answers``.

Times are ISO 8601 with an offset. A newer service may send more members than these.
"""

from typing import Any, NotRequired, TypedDict


class InputBody(TypedDict):
    """A backbone's input: features in a dataset's encoding."""

    shape: list[int]


class BackboneAnswer(TypedDict):
    """A backbone; ``sha256`` and ``size_bytes`` are null until its weights are uploaded."""

    name: str
    architecture: dict[str, Any]
    input: InputBody
    classes: int
    source: str
    sha256: str | None
    size_bytes: int | None
    created_at: str


class BundleAnswer(TypedDict):
    """A certificate bundle, the input of ``expunge verify``."""

    media_type: str
    envelope: dict[str, Any]
    log: dict[str, Any]
    request: NotRequired[dict[str, Any] | None]


class CertificateOfObligation(TypedDict):
    """A model's certificate for this request."""

    model: str
    certificate: str
    bundle: BundleAnswer


class ConsistencyAnswer(TypedDict):
    """A proof that the newer tree begins with the older one: RFC 6962, 2.1.2, in hex."""

    old_size: int
    old_root: str
    new_size: int
    new_root: str
    proof: list[str]


class FeaturesBody(TypedDict):
    """Shape and encoding of a record's features. Models see (raw - offset) * scale."""

    shape: list[int]
    dtype: NotRequired[str]
    offset: NotRequired[float]
    scale: NotRequired[float]


class DatasetAnswer(TypedDict):
    """A dataset with its counts; record ids are never stored, so never shown."""

    name: str
    features: FeaturesBody
    classes: int
    records: int
    forgotten_not_yet_erased: int
    erased: int
    created_at: str


class EntryAnswer(TypedDict):
    """One entry. ``body`` is the exact text that was hashed; ``leaf_hash`` is in hex."""

    index: int
    body: str
    leaf_hash: str


class ObligationAnswer(TypedDict):
    """What the request is owed by one model."""

    model: str
    state: str
    basis: str
    run: str | None
    certificate: str | None
    failure_reason: str | None


class ForgetAnswer(TypedDict):
    """A forget request. With ``receipt_salt`` its sender can show that it was covered."""

    id: str
    external_id: str | None
    dataset: str
    state: str
    records: int
    received_at: str
    due_at: str
    completed_at: str | None
    failure_reason: str | None
    receipt_salt: str
    obligations: list[ObligationAnswer]


class InclusionAnswer(TypedDict):
    """A proof that entry ``index`` is in the tree of ``size`` entries: RFC 6962, 2.1.1, in hex."""

    index: int
    size: int
    leaf_hash: str
    root: str
    proof: list[str]


class KeyAnswer(TypedDict):
    """A caller: an API key, shown without its secret, or a subject of an issuer's tokens."""

    id: str
    kind: str
    name: str
    scopes: list[str]
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class VersionAnswer(TypedDict):
    """One released version; ``reason`` says why it is no longer served."""

    number: int
    state: str
    sha256: str
    size_bytes: int
    certificate: str
    evaluation: dict[str, Any]
    created_at: str
    retired_at: str | None
    reason: str | None
    links: dict[str, str]


class RunAnswer(TypedDict):
    """A run. ``epsilon`` holds for the steps so far; ``loss`` is present once the target is met."""

    id: str
    model: str
    kind: str
    state: str
    attempt: int
    phase: str | None
    step: int | None
    total_steps: int | None
    epsilon: float | None
    loss: float | None
    failure_reason: str | None
    plan: dict[str, Any]
    phase_seconds: dict[str, float] | None
    created_at: str
    started_at: str | None
    finished_at: str | None


class ModelAnswer(TypedDict):
    """A model, its current version and its newest run."""

    name: str
    dataset: str
    architecture: dict[str, Any]
    recipe: dict[str, Any]
    policy: dict[str, Any]
    weights: str
    certified: VersionAnswer | None
    latest_run: RunAnswer | None
    created_at: str


class NewKeyAnswer(TypedDict):
    """A new key with its secret, which is shown only once."""

    id: str
    kind: str
    name: str
    scopes: list[str]
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None
    secret: str


class QuoteAnswer(TypedDict):
    """One mechanism's quote."""

    mechanism: str
    parameters: dict[str, Any]
    guarantee: dict[str, Any]
    certifying_gradients: float
    gradient_computations: float
    noise_per_coordinate: float
    surviving_information_bits: float | None


class DeclinedAnswer(TypedDict):
    """A mechanism that does not apply, and why."""

    mechanism: str
    reason: str


class PlansAnswer(TypedDict):
    """All quotes, and the choice of ``auto``."""

    choice: str | None
    quotes: list[QuoteAnswer]
    declined: list[DeclinedAnswer]


class PushAnswer(TypedDict):
    """The result of a push."""

    added: int
    already_present: int
