"""The Python client: typed calls over HTTP, problems raised as ``ApiError``."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from app.certificates.verification import VerifiedStep
from app.domain.errors import DownloadError
from app.download import (
    Announced,
    Downloaded,
    bundle_bytes,
    certify,
    discard_older,
    fetch,
    target_of,
)

_TIMEOUT_S = 60.0
_POLL_S = 0.2
_ENDED = {"completed", "failed", "cancelled"}

Json = dict[str, Any]
Seen = TypeVar("Seen")


class ApiError(Exception):
    """The service answered with a problem.

    Attributes:
        status: HTTP status.
        problem: the problem document; empty if the answer was none.
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(problem.get("detail") or f"the service answered {status}")
        self.status = status
        self.problem = dict(problem)


class ExpungeClient:
    """Calls one Expunge service.

    Args:
        url: such as ``http://127.0.0.1:8100``.
        api_key: sent as bearer token.
        transport: for tests.
    """

    def __init__(
        self, url: str, api_key: str, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=_TIMEOUT_S,
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

    def define_dataset(self, name: str, *, features: Mapping[str, Any], classes: int) -> Json:
        """Define a dataset; the same definition again changes nothing."""
        body = {"name": name, "features": dict(features), "classes": classes}
        return self._object("POST", "/v1/datasets", json=body)

    def dataset(self, name: str) -> Json:
        """Return a dataset and its counts."""
        return self._object("GET", f"/v1/datasets/{name}")

    def datasets(self) -> list[Json]:
        """Return all datasets."""
        return self._list("GET", "/v1/datasets")

    def push_records(self, name: str, parquet: bytes) -> Json:
        """Add records from a Parquet file's content."""
        return self._object("PUT", f"/v1/datasets/{name}/records", content=parquet)

    def define_backbone(self, definition: Mapping[str, Any]) -> Json:
        """Define a public backbone; see ``POST /v1/backbones``."""
        return self._object("POST", "/v1/backbones", json=dict(definition))

    def upload_backbone(self, name: str, safetensors: bytes) -> Json:
        """Give a backbone its weights, once."""
        return self._object("PUT", f"/v1/backbones/{name}/weights", content=safetensors)

    def backbone(self, name: str) -> Json:
        """Return a backbone."""
        return self._object("GET", f"/v1/backbones/{name}")

    def backbones(self) -> list[Json]:
        """Return all backbones."""
        return self._list("GET", "/v1/backbones")

    def define_model(self, definition: Mapping[str, Any]) -> Json:
        """Define a model; see ``POST /v1/models``."""
        return self._object("POST", "/v1/models", json=dict(definition))

    def model(self, name: str) -> Json:
        """Return a model, its current version and its newest run."""
        return self._object("GET", f"/v1/models/{name}")

    def models(self) -> list[Json]:
        """Return all models."""
        return self._list("GET", "/v1/models")

    def upload_weights(self, name: str, safetensors: bytes) -> Json:
        """Bring weights trained elsewhere."""
        return self._object("PUT", f"/v1/models/{name}/weights", content=safetensors)

    def certified(self, name: str) -> Json:
        """Return the current certified version."""
        return self._object("GET", f"/v1/models/{name}/certified")

    def versions(self, name: str) -> list[Json]:
        """Return all released versions, newest first."""
        return self._list("GET", f"/v1/models/{name}/versions")

    def model_card(self, name: str, number: int) -> str:
        """Return a version's model card, in Markdown."""
        answer = self._http.get(f"/v1/models/{name}/versions/{number}/card")
        if answer.is_error:
            raise _error_of(answer)
        return answer.text

    def model_signature(self, name: str, number: int) -> Json:
        """Return the OpenSSF Model Signing v1 signature of a version's weights."""
        return self._object("GET", f"/v1/models/{name}/versions/{number}/model.sig")

    def version_bundle(self, name: str, number: int) -> Json:
        """Return a version's certificate bundle."""
        return self._object("GET", f"/v1/models/{name}/versions/{number}/certificate")

    def certificate(self, certificate_id: str) -> Json:
        """Return a certificate bundle."""
        return self._object("GET", f"/v1/certificates/{certificate_id}")

    def public_key_pem(self) -> bytes:
        """Return the service's public key, as the service itself says; compare it elsewhere."""
        keys = self._object("GET", "/.well-known/expunge-keys.json")["keys"]
        return next(str(key["pem"]) for key in keys if key["algorithm"] == "ed25519").encode()

    def forget(
        self,
        dataset: str,
        *,
        record_ids: Sequence[str] = (),
        subject_ids: Sequence[str] = (),
        external_id: str | None = None,
        idempotency_key: str | None = None,
        status_callback_urls: Sequence[str] = (),
    ) -> Json:
        """Ask that records or subjects be forgotten."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        body = {
            "dataset": dataset,
            "record_ids": list(record_ids),
            "subject_ids": list(subject_ids),
            "external_id": external_id,
            "status_callback_urls": list(status_callback_urls),
        }
        return self._object("POST", "/v1/forget-requests", json=body, headers=headers)

    def request(self, request_id: str) -> Json:
        """Return a forget request."""
        return self._object("GET", f"/v1/forget-requests/{request_id}")

    def requests(self, **filters: str) -> list[Json]:
        """Return all requests that match ``state`` and ``model``, newest first."""
        return self._pages("/v1/forget-requests", filters)

    def callbacks(self, **filters: str) -> list[Json]:
        """Return all callbacks that match ``state`` and ``request``, newest first."""
        return self._pages("/v1/callbacks", filters)

    def redeliver(self, callback_id: str) -> Json:
        """Have a callback delivered now, whatever became of it before."""
        return self._object("POST", f"/v1/callbacks/{callback_id}/redeliver")

    def callback_secret(self) -> Json:
        """Return the secret that signs this key's callbacks."""
        return self._object("GET", "/v1/callback-secret")

    def rotate_callback_secret(self) -> Json:
        """Replace that secret; for a day, callbacks are signed with both."""
        return self._object("POST", "/v1/callback-secret/rotate")

    def retry(self, request_id: str) -> Json:
        """Give a failed request another run."""
        return self._object("POST", f"/v1/forget-requests/{request_id}/retry")

    def cancel(self, request_id: str, *, restore: bool = False) -> Json:
        """Cancel a request that no run has taken up."""
        return self._object(
            "DELETE", f"/v1/forget-requests/{request_id}", params={"restore": restore}
        )

    def certificates_of(self, request_id: str, *, since: int | None = None) -> list[Json]:
        """Return the certificates of a request's obligations, for use with its receipt.

        With ``since``, the size of an older checkpoint, each proves that the log grew out of it.
        """
        query = "" if since is None else f"?since={since}"
        return self._list("GET", f"/v1/forget-requests/{request_id}/certificates{query}")

    def run(self, run_id: str) -> Json:
        """Return a run."""
        return self._object("GET", f"/v1/runs/{run_id}")

    def create_key(self, name: str, scopes: Sequence[str]) -> Json:
        """Create an API key; the answer holds its secret."""
        return self._object("POST", "/v1/api-keys", json={"name": name, "scopes": list(scopes)})

    def plans(self, policy: Mapping[str, Any], *, model: str) -> Json:
        """Return every mechanism's quote for a policy and a model."""
        return self._object("POST", "/v1/plans", json={"policy": dict(policy), "model": model})

    def wait_for_request(
        self,
        request_id: str,
        *,
        timeout_s: float,
        on_change: Callable[[Json, Json | None], None] = lambda _request, _run: None,
    ) -> Json:
        """Poll a request until it has ended; tell of it and of its run each time.

        A service that is away for a while is waited for.

        Raises:
            TimeoutError: it has not ended in time.
        """

        def look() -> tuple[Json, Json | None]:
            request = self.request(request_id)
            run_ids = [o["run"] for o in request["obligations"] if o["run"] is not None]
            return request, self.run(run_ids[-1]) if run_ids else None

        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            seen = _unless_away(look)
            if seen is not None:
                on_change(*seen)
                if seen[0]["state"] in _ENDED:
                    return seen[0]
            time.sleep(_POLL_S)
        raise TimeoutError(f"request {request_id} has not ended within {timeout_s:g} s")

    def wait_for_model(
        self,
        name: str,
        *,
        timeout_s: float,
        on_change: Callable[[Json], None] = lambda _run: None,
    ) -> Json:
        """Poll a model until its newest run has ended.

        A service that is away for a while is waited for.

        Raises:
            TimeoutError: it has not ended in time.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            model = _unless_away(lambda: self.model(name))
            run = None if model is None else model["latest_run"]
            if model is not None and run is not None:
                on_change(run)
                if run["state"] in ("published", "failed"):
                    return model
            time.sleep(_POLL_S)
        raise TimeoutError(f"model {name} has no version within {timeout_s:g} s")

    def download(
        self,
        name: str,
        directory: Path,
        *,
        keys: bytes,
        number: int | None = None,
        report: Callable[[VerifiedStep], None] = lambda _step: None,
    ) -> Downloaded:
        """Download a version's weights and certificate, and verify them.

        A download that was interrupted is continued; partial files of versions that are no longer
        current are removed. The weights get their name only once the certificate holds.

        Args:
            name: the model.
            directory: where the files go.
            keys: the operator's public key, from a channel other than this service.
            number: the version; the current certified one if not given.
            report: told of each step of the verification that passed.

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
        bundle = bundle_bytes(self.version_bundle(name, version.number))
        return certify(version, part, target, bundle=bundle, keys=keys, report=report)

    def _version(self, name: str, number: int | None) -> Json:
        if number is None:
            return self.certified(name)
        for version in self.versions(name):
            if version["number"] == number:
                return version
        raise DownloadError(f"model {name!r} has released no version {number}")

    def log_checkpoint(self) -> str:
        """Return the transparency log's newest checkpoint, a signed note."""
        return self._answer("GET", "/v1/log/checkpoint").text

    def log_entry(self, index: int) -> Json:
        """Return one entry of the log; they count from 0."""
        return self._object("GET", f"/v1/log/entries/{index}")

    def prove_inclusion(self, index: int, size: int) -> Json:
        """Return the proof that an entry is among the first ``size``."""
        options = {"index": index, "size": size}
        return self._object("GET", "/v1/log/proofs/inclusion", params=options)

    def prove_consistency(self, old_size: int, new_size: int) -> Json:
        """Return the proof that the first ``new_size`` entries begin with ``old_size``."""
        options = {"from": old_size, "to": new_size}
        return self._object("GET", "/v1/log/proofs/consistency", params=options)

    def _pages(self, path: str, filters: Mapping[str, str]) -> list[Json]:
        items: list[Json] = []
        cursor: str | None = None
        while True:
            params = filters if cursor is None else {**filters, "cursor": cursor}
            page = self._object("GET", path, params=params)
            items.extend(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return items

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:  # noqa: ANN401
        answer = self._http.request(method, path, **options)
        if answer.is_error:
            raise _error_of(answer)
        return answer

    def _send(self, method: str, path: str, **options: Any) -> Any:  # noqa: ANN401
        return self._answer(method, path, **options).json()

    def _object(self, method: str, path: str, **options: Any) -> Json:  # noqa: ANN401
        return dict(self._send(method, path, **options))

    def _list(self, method: str, path: str, **options: Any) -> list[Json]:  # noqa: ANN401
        return list(self._send(method, path, **options))


def _unless_away(look: Callable[[], Seen]) -> Seen | None:
    """Return what there is to see, or None while the service cannot be reached."""
    try:
        return look()
    except httpx.TransportError:
        return None
    except ApiError as error:
        if error.status != 503:
            raise
        return None


def _error_of(answer: httpx.Response) -> ApiError:
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    return ApiError(answer.status_code, problem if isinstance(problem, dict) else {})
