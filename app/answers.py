"""The service's answers, as the client returns them: the types of JSON objects.

Times are ISO 8601 with an offset. A newer service may send more members than these.
"""

from typing import Any, TypedDict


class Features(TypedDict):
    """How features are stored, and how models see them: ``(raw - offset) * scale``."""

    shape: list[int]
    dtype: str
    offset: float
    scale: float


class Dataset(TypedDict):
    """A dataset and its counts of records."""

    name: str
    features: Features
    classes: int
    records: int
    forgotten_not_yet_erased: int
    erased: int
    created_at: str


class Push(TypedDict):
    """How many records were new."""

    added: int
    already_present: int


class Backbone(TypedDict):
    """A public backbone; ``sha256`` and ``size_bytes`` are null until it has its weights."""

    name: str
    architecture: dict[str, Any]
    input: dict[str, Any]
    classes: int
    source: str
    sha256: str | None
    size_bytes: int | None
    created_at: str


class Run(TypedDict):
    """One piece of work on a model, and its progress."""

    id: str
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


class Version(TypedDict):
    """One released checkpoint of a model."""

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


class Model(TypedDict):
    """A model, its current certified version and its newest run."""

    name: str
    dataset: str
    architecture: dict[str, Any]
    recipe: dict[str, Any]
    policy: dict[str, Any]
    weights: str
    certified: Version | None
    latest_run: Run | None
    created_at: str


class Obligation(TypedDict):
    """What a forget request is owed by one model."""

    model: str
    state: str
    basis: str
    run: str | None
    certificate: str | None
    failure_reason: str | None


class ForgetRequest(TypedDict):
    """A forget request; its receipt is made from ``receipt_salt``."""

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
    obligations: list[Obligation]


class Bundle(TypedDict):
    """A certificate bundle: what ``expunge verify`` reads."""

    media_type: str
    envelope: dict[str, Any]
    log: dict[str, Any]
    request: dict[str, Any] | None


class RequestCertificate(TypedDict):
    """The certificate that answers a forget request for one model."""

    model: str
    certificate: str
    bundle: Bundle


class Quote(TypedDict):
    """One mechanism's offer."""

    mechanism: str
    parameters: dict[str, Any]
    guarantee: dict[str, Any]
    certifying_gradients: float
    gradient_computations: float
    noise_per_coordinate: float
    surviving_information_bits: float | None


class Declined(TypedDict):
    """A mechanism that does not apply, and why."""

    mechanism: str
    reason: str


class Plans(TypedDict):
    """All quotes, and what ``auto`` would choose."""

    choice: str | None
    quotes: list[Quote]
    declined: list[Declined]


class ApiKey(TypedDict):
    """An API key, without its secret."""

    id: str
    name: str
    scopes: list[str]
    created_at: str
    revoked_at: str | None


class NewApiKey(ApiKey):
    """An API key, and its secret, which is shown this once."""

    secret: str


class LogEntry(TypedDict):
    """One entry of the log: the exact text that was hashed, and its hash in hex."""

    index: int
    body: str
    leaf_hash: str


class InclusionProof(TypedDict):
    """A proof that an entry is in the tree of ``size`` entries: RFC 6962, in hex."""

    index: int
    size: int
    leaf_hash: str
    root: str
    proof: list[str]


class ConsistencyProof(TypedDict):
    """A proof that the newer tree begins with the older one: RFC 6962, in hex."""

    old_size: int
    old_root: str
    new_size: int
    new_root: str
    proof: list[str]
