"""The Python client: typed calls over HTTP, retried where that is safe.

Every POST carries an ``Idempotency-Key``, so that sending it again cannot do it twice. Problems are
raised as ``ApiError``, a service that cannot be reached as ``httpx.TransportError``.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from uuid import uuid4

import httpx

from app.answers import (
    ApiKey,
    Backbone,
    Bundle,
    ConsistencyProof,
    Dataset,
    ForgetRequest,
    InclusionProof,
    LogEntry,
    Model,
    NewApiKey,
    Plans,
    Push,
    RequestCertificate,
    Run,
    Version,
)
from app.certificates import strict_json
from app.certificates.verification import VerifiedStep
from app.domain.errors import DownloadError, VerificationError
from app.download import (
    Announced,
    Downloaded,
    bundle_bytes,
    certify,
    discard_older,
    fetch,
    target_of,
)
from app.kept_checkpoint import CHECKPOINT_FILENAME, KeptCheckpoint, kept_checkpoint
from app.retries import Retry, retry_after_s

_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10.0
_POLL_S = 0.2
_LARGEST_PAGE = 200
_HOLD_S = 20
_ENDED = {"completed", "failed", "cancelled"}

Seen = TypeVar("Seen")


class ApiError(Exception):
    """The service answered with a problem.

    Attributes:
        status: HTTP status.
        problem: the problem document (RFC 9457); empty if the answer had none.
        type: the problem's type, by which programs distinguish problems; empty if it has none.
        title, detail: the problem in general, and in this case; may be empty.
        retry_after_s: after how many seconds to call again, if the service says so.
    """

    def __init__(
        self, status: int, problem: Mapping[str, Any], *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(problem.get("detail") or f"the service answered {status}")
        self.status = status
        self.problem = dict(problem)
        self.type = str(problem.get("type", ""))
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        self.retry_after_s = retry_after_s


class ExpungeClient:
    """Calls one Expunge service. One client may be used by several threads.

    Args:
        url: such as ``http://127.0.0.1:8100``.
        api_key: sent as bearer token.
        retry: how calls are retried; ``Retry(attempts=1)`` retries nothing.
        timeout_s: how long an answer may take, at each attempt.
        transport: for tests.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        retry: Retry | None = None,
        timeout_s: float = _TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._retry = retry or Retry()
        self._hold_s = min(_HOLD_S, timeout_s / 2)
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def define_dataset(self, name: str, *, features: Mapping[str, Any], classes: int) -> Dataset:
        """Define a dataset; the same definition again changes nothing."""
        body = {"name": name, "features": dict(features), "classes": classes}
        return self._object(Dataset, "POST", "/v1/datasets", json=body)

    def dataset(self, name: str) -> Dataset:
        """Return a dataset and its counts."""
        return self._object(Dataset, "GET", f"/v1/datasets/{name}")

    def datasets(self) -> list[Dataset]:
        """Return all datasets, by name."""
        return self._list(Dataset, "GET", "/v1/datasets")

    def push_records(self, name: str, parquet: bytes) -> Push:
        """Add records from a Parquet file's content."""
        return self._object(Push, "PUT", f"/v1/datasets/{name}/records", content=parquet)

    def define_backbone(self, definition: Mapping[str, Any]) -> Backbone:
        """Define a public backbone; see ``POST /v1/backbones``."""
        return self._object(Backbone, "POST", "/v1/backbones", json=dict(definition))

    def upload_backbone(self, name: str, safetensors: bytes) -> Backbone:
        """Give a backbone its weights, once."""
        return self._object(Backbone, "PUT", f"/v1/backbones/{name}/weights", content=safetensors)

    def backbone(self, name: str) -> Backbone:
        """Return a backbone."""
        return self._object(Backbone, "GET", f"/v1/backbones/{name}")

    def backbones(self) -> list[Backbone]:
        """Return all backbones, by name."""
        return self._list(Backbone, "GET", "/v1/backbones")

    def define_model(self, definition: Mapping[str, Any]) -> Model:
        """Define a model; see ``POST /v1/models``."""
        return self._object(Model, "POST", "/v1/models", json=dict(definition))

    def model(self, name: str, *, wait_s: int = 0) -> Model:
        """Return a model, its current version and its newest run; see ``request``."""
        return self._news(Model, f"/v1/models/{name}", wait_s)

    def models(self, **filters: str) -> list[Model]:
        """Return all models that match ``dataset``, by name."""
        return self._list(Model, "GET", "/v1/models", params=filters)

    def change_policy(self, name: str, changes: Mapping[str, Any]) -> Model:
        """Change fields of a model's policy from its next run on."""
        return self._object(Model, "PATCH", f"/v1/models/{name}", json={"policy": dict(changes)})

    def upload_weights(self, name: str, safetensors: bytes) -> Model:
        """Bring weights trained elsewhere."""
        return self._object(Model, "PUT", f"/v1/models/{name}/weights", content=safetensors)

    def certified(self, name: str) -> Version:
        """Return the current certified version."""
        return self._object(Version, "GET", f"/v1/models/{name}/certified")

    def versions(self, name: str, **filters: str) -> list[Version]:
        """Return all released versions that match ``state``, newest first."""
        return self._list(Version, "GET", f"/v1/models/{name}/versions", params=filters)

    def model_card(self, name: str, number: int) -> str:
        """Return a version's model card, in Markdown."""
        return self._answer("GET", f"/v1/models/{name}/versions/{number}/card").text

    def model_signature(self, name: str, number: int) -> dict[str, Any]:
        """Return the OpenSSF Model Signing v1 signature of a version's weights."""
        answer = self._answer("GET", f"/v1/models/{name}/versions/{number}/model.sig")
        return dict(answer.json())

    def version_bundle(self, name: str, number: int, *, since: int | None = None) -> Bundle:
        """Return a version's certificate bundle.

        With ``since``, the size of an older checkpoint, it proves that the log only grew since.
        """
        params = {} if since is None else {"since": since}
        path = f"/v1/models/{name}/versions/{number}/certificate"
        return self._object(Bundle, "GET", path, params=params)

    def certificate(self, certificate_id: str) -> Bundle:
        """Return a certificate bundle."""
        return self._object(Bundle, "GET", f"/v1/certificates/{certificate_id}")

    def trusted_keys(self) -> bytes:
        """Return the service's own dated list of keys; compare it with another source."""
        return self._answer("GET", "/.well-known/expunge-keys.json").content

    def forget(
        self,
        dataset: str,
        *,
        record_ids: Sequence[str] = (),
        subject_ids: Sequence[str] = (),
        external_id: str | None = None,
        idempotency_key: str | None = None,
        status_callback_urls: Sequence[str] = (),
    ) -> ForgetRequest:
        """Ask that records or subjects be forgotten."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        body = {
            "dataset": dataset,
            "record_ids": list(record_ids),
            "subject_ids": list(subject_ids),
            "external_id": external_id,
            "status_callback_urls": list(status_callback_urls),
        }
        return self._object(
            ForgetRequest, "POST", "/v1/forget-requests", json=body, headers=headers
        )

    def request(self, request_id: str, *, wait_s: int = 0) -> ForgetRequest:
        """Return a forget request; with ``wait_s``, at most 60, as soon as its state changes."""
        return self._news(ForgetRequest, f"/v1/forget-requests/{request_id}", wait_s)

    def requests(self, **filters: str) -> list[ForgetRequest]:
        """Return all requests that match ``state``, ``model`` and ``external_id``, newest first."""
        return self._list(ForgetRequest, "GET", "/v1/forget-requests", params=filters)

    def callbacks(self, **filters: str) -> list[dict[str, Any]]:
        """Return all callbacks that match ``state`` and ``request``, newest first."""
        return self._list(dict[str, Any], "GET", "/v1/callbacks", params=filters)

    def redeliver(self, callback_id: str) -> dict[str, Any]:
        """Have a callback delivered now, whatever its state is."""
        return self._object(dict[str, Any], "POST", f"/v1/callbacks/{callback_id}/redeliver")

    def callback_secret(self) -> dict[str, Any]:
        """Return the secret that signs this key's callbacks."""
        return self._object(dict[str, Any], "GET", "/v1/callback-secret")

    def rotate_callback_secret(self) -> dict[str, Any]:
        """Replace that secret; for a day, callbacks are signed with both."""
        return self._object(dict[str, Any], "POST", "/v1/callback-secret/rotate")

    def retry(self, request_id: str) -> ForgetRequest:
        """Give a failed request another run."""
        return self._object(ForgetRequest, "POST", f"/v1/forget-requests/{request_id}/retry")

    def cancel(self, request_id: str, *, restore: bool = False) -> ForgetRequest:
        """Cancel a request that no run has started on."""
        return self._object(
            ForgetRequest,
            "DELETE",
            f"/v1/forget-requests/{request_id}",
            params={"restore": restore},
        )

    def certificates_of(
        self, request_id: str, *, since: int | None = None
    ) -> list[RequestCertificate]:
        """Return the certificates of a request's obligations, for use with its receipt.

        With ``since``, the size of an older checkpoint, each proves that the log only grew since.
        """
        params = {} if since is None else {"since": since}
        path = f"/v1/forget-requests/{request_id}/certificates"
        return self._list(RequestCertificate, "GET", path, params=params)

    def run(self, run_id: str, *, wait_s: int = 0) -> Run:
        """Return a run; see ``request``."""
        return self._news(Run, f"/v1/runs/{run_id}", wait_s)

    def runs(self, **filters: str) -> list[Run]:
        """Return all runs that match ``model`` and ``state``, newest first."""
        return self._list(Run, "GET", "/v1/runs", params=filters)

    def cancel_run(self, run_id: str) -> Run:
        """End a run that is queued or going; its obligations wait for the model's next run."""
        return self._object(Run, "POST", f"/v1/runs/{run_id}/cancel")

    def retry_run(self, run_id: str) -> Run:
        """Start a new run like one that failed or was cancelled."""
        return self._object(Run, "POST", f"/v1/runs/{run_id}/retry")

    def follow_run(self, run_id: str) -> Iterator[dict[str, Any]]:
        """Yield a run's state, phase, step and epsilon each time that they change, to its end."""
        with self._http.stream("GET", f"/v1/runs/{run_id}/events") as answer:
            if answer.is_error:
                answer.read()
            for line in _checked(answer).iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def create_key(
        self, name: str, scopes: Sequence[str], *, expires_at: datetime | None = None
    ) -> NewApiKey:
        """Create an API key; the answer holds its secret."""
        body: dict[str, Any] = {"name": name, "scopes": list(scopes)}
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        return self._object(NewApiKey, "POST", "/v1/api-keys", json=body)

    def keys(self) -> list[ApiKey]:
        """Return all keys and callers, newest first."""
        return self._list(ApiKey, "GET", "/v1/api-keys")

    def revoke_key(self, key_id: str) -> None:
        """Revoke an API key."""
        self._answer("DELETE", f"/v1/api-keys/{key_id}")

    def audit(
        self, *, caller: str | None = None, kind: str | None = None, limit: int
    ) -> Iterator[dict[str, Any]]:
        """Return the newest entries of the audit trail, at most ``limit``, newest first."""
        filters = {"caller": caller, "kind": kind}
        params: dict[str, Any] = {
            name: value for name, value in filters.items() if value is not None
        }
        while limit > 0:
            query = {**params, "limit": min(limit, _LARGEST_PAGE)}
            page = self._object(dict, "GET", "/v1/audit", params=query)
            yield from page["items"]
            limit -= len(page["items"])
            if page["next_cursor"] is None:
                return
            params["cursor"] = page["next_cursor"]

    def plans(self, policy: Mapping[str, Any], *, model: str) -> Plans:
        """Return every mechanism's quote for a policy and a model."""
        return self._object(
            Plans, "POST", "/v1/plans", json={"policy": dict(policy), "model": model}
        )

    def wait_for_request(
        self,
        request_id: str,
        *,
        timeout_s: float,
        on_change: Callable[[ForgetRequest, Run | None], None] | None = None,
    ) -> ForgetRequest:
        """Wait until a request has ended.

        The service holds its answers until something changes. With ``on_change`` it is polled
        instead, and ``on_change`` is called with the request and its run each time. If the service
        is unreachable for a while, this waits for it.

        Raises:
            TimeoutError: it has not ended in time.
        """
        path = f"/v1/forget-requests/{request_id}"

        def look(left_s: float) -> ForgetRequest:
            if on_change is None:
                held = {"Prefer": f"wait={int(min(self._hold_s, left_s))}"}
                return cast("ForgetRequest", self._once("GET", path, headers=held).json())
            request = cast("ForgetRequest", self._once("GET", path).json())
            run_ids = [o["run"] for o in request["obligations"] if o["run"] is not None]
            run = self._once("GET", f"/v1/runs/{run_ids[-1]}").json() if run_ids else None
            on_change(request, cast("Run | None", run))
            return request

        for request in _seen_until(timeout_s, look):
            if request["state"] in _ENDED:
                return request
        raise TimeoutError(f"request {request_id} has not ended within {timeout_s:g} s")

    def wait_for_model(
        self,
        name: str,
        *,
        timeout_s: float,
        on_change: Callable[[Run], None] = lambda _run: None,
    ) -> Model:
        """Poll a model until its newest run has ended.

        A service that is away for a while is waited for. Raises:
            TimeoutError: it has not ended in time.
        """

        def look(_: float) -> Model:
            return cast("Model", self._once("GET", f"/v1/models/{name}").json())

        for model in _seen_until(timeout_s, look):
            run = model["latest_run"]
            if run is not None:
                on_change(run)
                if run["state"] in ("published", "failed", "cancelled"):
                    return model
        raise TimeoutError(f"model {name} has no version within {timeout_s:g} s")

    def download(
        self,
        name: str,
        directory: Path,
        *,
        trusted: bytes,
        kept: Path | None = None,
        number: int | None = None,
        report: Callable[[VerifiedStep], None] = lambda _step: None,
    ) -> Downloaded:
        """Download a version's weights and certificate, and verify them.

        A download that was interrupted is continued; partial files of versions that are no longer
        current are removed. The weights get their name only once the certificate holds.

        Args:
            name: the model.
            directory: where the files go.
            trusted: the operator's list of trusted keys, not received from this service.
            kept: where the log's newest checkpoint is kept from one download to the next; a file in
                ``directory`` if not given. The log must have only grown since.
            number: the version; the current certified one if not given.
            report: called with each step of the verification that passed.

        Raises:
            ApiError: the service refuses; 410 for a version that was retired.
            DownloadError: interrupted, or not what was announced; the message says what to do.
            VerificationError: the certificate does not hold.
        """
        version = Announced.from_answer(name, self._version(name, number))
        if number is None:
            discard_older(version, directory)
        target = target_of(version, directory)
        part = fetch(self._http, version, target, error_of=_error_of)
        with kept_checkpoint(kept or directory / CHECKPOINT_FILENAME) as checkpoint:
            bundle = self._bundle_since(name, version.number, checkpoint)
            files = certify(
                version,
                part,
                target,
                bundle=bundle_bytes(bundle),
                trusted=trusted,
                consistent_with=checkpoint.note,
                report=report,
            )
            checkpoint.replace(str(bundle["log"]["checkpoint"]))
        return files

    def _bundle_since(self, name: str, number: int, checkpoint: KeptCheckpoint) -> Bundle:
        try:
            return self.version_bundle(name, number, since=checkpoint.size)
        except ApiError as error:
            if checkpoint.size is None or error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            raise VerificationError(
                "history", f"the log is shorter than the one known from {checkpoint.path}"
            ) from error

    def _version(self, name: str, number: int | None) -> Version:
        if number is None:
            return self.certified(name)
        for version in self.versions(name):
            if version["number"] == number:
                return version
        raise DownloadError(f"model {name!r} has released no version {number}")

    def log_checkpoint(self) -> str:
        """Return the transparency log's newest checkpoint, a signed note."""
        return self._answer("GET", "/v1/log/checkpoint").text

    def log_entry(self, index: int) -> LogEntry:
        """Return one entry of the log; they count from 0."""
        return self._object(LogEntry, "GET", f"/v1/log/entries/{index}")

    def prove_inclusion(self, index: int, size: int) -> InclusionProof:
        """Return the proof that an entry is among the first ``size``."""
        options = {"index": index, "size": size}
        return self._object(InclusionProof, "GET", "/v1/log/proofs/inclusion", params=options)

    def prove_consistency(self, old_size: int, new_size: int) -> ConsistencyProof:
        """Return the proof that the first ``new_size`` entries begin with ``old_size``."""
        options = {"from": old_size, "to": new_size}
        return self._object(ConsistencyProof, "GET", "/v1/log/proofs/consistency", params=options)

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:  # noqa: ANN401
        if method == "POST":
            options["headers"] = {"Idempotency-Key": str(uuid4()), **options.get("headers", {})}
        return _checked(self._retry.call(lambda: self._http.request(method, path, **options)))

    def _once(self, method: str, path: str, **options: Any) -> httpx.Response:  # noqa: ANN401
        return _checked(self._http.request(method, path, **options))

    def _news(self, kind: type[Seen], path: str, wait_s: int) -> Seen:
        if wait_s == 0:
            return self._object(kind, "GET", path)
        headers = {"Prefer": f"wait={wait_s}"}
        return self._object(kind, "GET", path, headers=headers, timeout=_TIMEOUT_S + wait_s)

    def _object(self, _: type[Seen], method: str, path: str, **options: Any) -> Seen:  # noqa: ANN401
        return cast("Seen", strict_json.loads(self._answer(method, path, **options).content))

    def _list(
        self,
        _: type[Seen],
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> list[Seen]:
        """Return the items of all pages of a list; some lists are a plain array."""
        items: list[Seen] = []
        query = dict(params or {})
        while True:
            page = strict_json.loads(self._answer(method, path, params=query).content)
            if isinstance(page, list):
                return page
            items.extend(page["items"])
            if page.get("next_cursor") is None:
                return items
            query["cursor"] = page["next_cursor"]


def _seen_until(timeout_s: float, look: Callable[[float], Seen]) -> Iterator[Seen]:
    """Yield what there is to see, repeatedly, until the time is over."""
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        asked = time.monotonic()
        seen = _unless_away(lambda left_s=left_s: look(left_s))  # type: ignore[misc]
        if seen is not None:
            yield seen
        if time.monotonic() - asked < _POLL_S:
            time.sleep(_POLL_S)


def _unless_away(look: Callable[[], Seen]) -> Seen | None:
    """Return what there is to see, or None while the service is unreachable or asks to wait."""
    try:
        return look()
    except httpx.TransportError:
        return None
    except ApiError as error:
        if error.status not in (429, 502, 503, 504):
            raise
        return None


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        raise _error_of(answer)
    return answer


def _error_of(answer: httpx.Response) -> ApiError:
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    return ApiError(
        answer.status_code,
        problem if isinstance(problem, dict) else {},
        retry_after_s=retry_after_s(answer),
    )
