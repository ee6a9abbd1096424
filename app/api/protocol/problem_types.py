"""Every problem type. A type's URI never changes its meaning.

``make docs`` makes the page of problems from this table.
"""

from dataclasses import dataclass, field
from typing import Any

PREFIX = "urn:expunge:problem:"


@dataclass(frozen=True)
class ProblemType:
    """One type of problem.

    ``meaning`` says when it occurs, and what to do; ``detail`` and ``members`` are examples.
    """

    name: str
    status: int
    meaning: str
    detail: str
    members: dict[str, Any] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """The value of ``type``."""
        return PREFIX + self.name

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("-", " ").capitalize()

    def body(self, detail: str, members: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "type": self.uri,
            "title": self.title,
            "status": self.status,
            "detail": detail,
            **members,
        }


# By name: the status, the meaning, and examples of the detail and of further members.
_TYPES: dict[str, tuple[Any, ...]] = {
    "bad-request": (
        400,
        "The request cannot be parsed, for example JSON that is not UTF-8 or nests too deeply.",
        "the body cannot be read as JSON",
    ),
    "unauthenticated": (
        401,
        "No valid API key or access token came with the request. `WWW-Authenticate` says how to "
        "authenticate.",
        "send a valid API key as 'Authorization: Bearer …'",
    ),
    "credentials-expired": (
        401,
        "The API key or access token was valid once. Ask an administrator for another key, or the "
        "issuer for another token.",
        "this API key has expired",
    ),
    "missing-scope": (
        403,
        "The key is valid but lacks a scope, named in `scope`.",
        "this key lacks the scope forget:write",
        {"scope": "forget:write"},
    ),
    "not-found": (
        404,
        "A resource named in the path or the body does not exist.",
        "no model named 'digits-mlp'",
    ),
    "not-ready": (
        404,
        "It does not exist yet: a model's first version is still being certified. Try again later.",
        "model 'digits-mlp' has no certified version yet",
    ),
    "method-not-allowed": (
        405,
        "The path does not support this method. `Allow` lists those it supports.",
        "this path takes GET, POST",
    ),
    "conflict": (
        409,
        "The call conflicts with the current state: a name that is taken, a request that can no "
        "longer be cancelled. Check the current state first.",
        "model 'digits-mlp' exists already",
    ),
    "public-dataset": (
        409,
        "Records of a dataset that was defined as public cannot be forgotten: its owner asserts "
        "that nobody can ask for that, and public weights may have been made of them. If the "
        "assertion was wrong, docs/how-to/better-heads.md says what to do.",
        "dataset 'open-digits' is public: its owner asserts that nobody can ask for its records to "
        "be forgotten, and public weights may rest on them",
    ),
    "call-in-flight": (
        409,
        "An earlier call with the same `Idempotency-Key` has not finished. Repeat the call after "
        "`Retry-After` seconds. If its process was killed, this takes at most a minute.",
        "a call with this Idempotency-Key is still in progress",
    ),
    "gone": (
        410,
        "The version was retired or withdrawn, or its weights are shredded; `detail` says why, for "
        "instance because every record that the model could be trained on was forgotten. It does "
        "not come back.",
        "version 1 of 'digits-mlp' was retired",
    ),
    "precondition-failed": (
        412,
        "`If-Match` names a state of the resource other than the current one.",
        "this is not the content that If-Match names",
    ),
    "payload-too-large": (
        413,
        "The body is larger than the operator's limit: `EXPUNGE_MAX_UPLOAD_BYTES` for files, "
        "`EXPUNGE_MAX_IDS_BYTES` for JSON that lists ids, `EXPUNGE_MAX_JSON_BYTES` for all other "
        "JSON. Nothing was stored.",
        "the body is larger than 536870912 bytes, this service's EXPUNGE_MAX_UPLOAD_BYTES; "
        "send it in parts",
    ),
    "unsupported-media-type": (
        415,
        "The operation does not support the body's `Content-Type`; or the body is compressed: "
        "`Content-Encoding` may only be `identity`, as `Accept-Encoding` says then.",
        "send the body as application/json",
    ),
    "range-not-satisfiable": (
        416,
        "`Range` begins after the end of the content. `Content-Range` gives its size.",
        "the content has 1024 bytes; the range begins after its end",
    ),
    "invalid-input": (
        422,
        "A field, parameter or file is invalid; `problems`, if present, lists the first errors, "
        "`problem_count` counts all. Nothing was stored.",
        "body.classes: Input should be a valid integer",
        {
            "problem_count": 1,
            "problems": [{"field": "body.classes", "reason": "Input should be a valid integer"}],
        },
    ),
    "idempotency-key-reused": (
        422,
        "The `Idempotency-Key` was used with another body. Use a new key for a new call.",
        "this Idempotency-Key came with another body before",
    ),
    "invalid-records": (
        422,
        "The Parquet file was rejected as a whole: `problems` lists each error with its column, "
        "its first row, counted from 0, and the number of `rows` that have it; `problem_count` "
        "counts all.",
        "1 problem(s); the first: row 3, column 'label': must lie between 0 and 9",
        {
            "problem_count": 1,
            "problems": [
                {"row": 3, "column": "label", "reason": "must lie between 0 and 9", "rows": 1}
            ],
        },
    ),
    "place-not-allowed": (
        422,
        "An import's `url` lies under none of the prefixes from which this service imports. The "
        "operator lists them in `EXPUNGE_IMPORT_PREFIXES`.",
        "the url lies under none of the prefixes that this service imports from: its operator sets "
        "EXPUNGE_IMPORT_PREFIXES",
    ),
    "unknown-records": (
        422,
        "A forget request names ids that the dataset never held; `unknown` shows up to 20 of them. "
        "Nothing was accepted: correct the ids and send the request again.",
        "ids that are unknown to this dataset: 1",
        {"unknown_count": 1, "unknown": ["person-0071"]},
    ),
    "parameter-out-of-range": (
        422,
        "A number lies outside the range for which the guarantee holds.",
        "epsilon must be above 0",
        {"parameter": "epsilon", "allowed": "above 0"},
    ),
    "no-plan": (
        422,
        "No mechanism can meet the policy; `detail` says what to change. `POST /v1/plans` shows "
        "what each mechanism would need.",
        "no mechanism meets epsilon 0.01 within 30 epochs: raise epsilon or budget_epochs",
    ),
    "too-costly": (
        422,
        "A plan of this size, or a body with so much content, takes more time or memory than one "
        "call may use. A plan may take 30 s. Use fewer "
        "steps, records or releases.",
        "planning takes longer than the 30 s that one call may: ask for less",
    ),
    "internal": (
        500,
        "A defect of the service. The answer shows no details; the service's log does.",
        "an unexpected error; see the service's log",
    ),
    "too-many-requests": (
        429,
        "The caller reached its limit of calls or of concurrent waits, has hundreds of "
        "calls that wait for their turn, or its address failed to authenticate too often. Repeat "
        "the call after `Retry-After` seconds.",
        "too many calls: 60 a minute are allowed",
    ),
    "corrupt-log": (
        500,
        "The log's tables are inconsistent. The operator runs `expunge log fsck`.",
        "the log has 12 entries but its tree covers 13",
    ),
    "corrupt-object": (
        500,
        "A stored object is not what was stored: the operator restores it or retires the version.",
        "object blob_5b0c is not what was stored: chunk 0 is forged",
    ),
    "overloaded": (
        503,
        "The service is at its limit of connections, calls, uploads in memory or concurrent plans. "
        "Nothing was stored. Repeat the call after `Retry-After` seconds.",
        "planning is busy: repeat the call",
    ),
    "unavailable": (
        503,
        "The database cannot be reached, or failed before it answered: the call may have taken "
        "effect. Repeat it after `Retry-After` seconds, a POST with its `Idempotency-Key`.",
        "the database cannot be reached; repeat the call",
    ),
    "issuer-unavailable": (
        503,
        "The issuer of access tokens cannot be reached, so a token cannot be checked. API keys "
        "still work.",
        "the issuer's keys cannot be fetched now",
    ),
    "storage-unavailable": (
        503,
        "Stored objects or their keys cannot be read or written now. Repeat the call after "
        "`Retry-After` seconds.",
        "the object store does not answer",
    ),
}
PROBLEM_TYPES = {name: ProblemType(name, *facts) for name, facts in _TYPES.items()}
