"""The client: one method for each call of the service.

``Prefer: wait`` has the service hold an answer until there is news; waiting goes on while the
service is away.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from uuid import uuid4

import httpx

from app.client.answers import ApiError, Held, Json, at, checked, named
from app.client.download import Downloaded, download
from app.domain import strict_json
from app.domain.errors import ConfigurationError
from app.runtime.outgoing import Retry, client_options

if TYPE_CHECKING:
    from app.evidence.certificates.verification import VerifiedStep

_LARGEST_PAGE = 200
_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10.0
_HOLD_S = 20
_POLL_S = 0.2
_PIECE_BYTES = 1 << 18
_ENDED = {"completed", "failed", "cancelled", "refused"}
_GOING = {"queued", "leased", "running"}
_KEY: Final = re.compile("[!-~]+")
_Seen = TypeVar("_Seen")


class ExpungeClient:
    """Calls one Expunge service. One client may be used by several threads.

    Args:
        url: such as ``http://127.0.0.1:8100``.
        api_key: sent as bearer token.
        retry: how calls are retried; ``Retry(attempts=1)`` retries nothing.
        timeout_s: how long an answer may take, at each attempt.
        transport: for tests.

    Raises:
        ConfigurationError: the URL or the key cannot be one.
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
        if not url.startswith(("http://", "https://")):
            message = "the URL of the service (EXPUNGE_API_URL) must begin with http:// or https://"
            raise ConfigurationError(message)
        if _KEY.fullmatch(api_key) is None:
            raise ConfigurationError("the API key is empty, or has characters that no key has")
        self._retry = retry or Retry()
        self._hold_s = min(_HOLD_S, timeout_s / 2)
        self.http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
            transport=transport,
            **({} if transport else client_options(url)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def define_dataset(
        self,
        name: str,
        columns: Mapping[str, str],
        *,
        record_id: str,
        subject_id: str | None = None,
        public: bool = False,
    ) -> Json:
        """Define a dataset; the same definition again changes nothing."""
        body = {
            "name": name,
            "columns": dict(columns),
            "record_id": record_id,
            "subject_id": subject_id,
            "public": public,
        }
        return self._object("POST", "/v1/datasets", json=body)

    def dataset(self, name: str) -> Json:
        """Return a dataset and its counts."""
        return self._object("GET", at("datasets", name))

    def datasets(self) -> list[Json]:
        """Return all datasets, by name."""
        return self._list("/v1/datasets")

    def alter_dataset(self, name: str, columns: Mapping[str, str]) -> Json:
        """Add columns to a dataset, and widen the types of others."""
        return self._object("PATCH", at("datasets", name), json={"columns": dict(columns)})

    def archive_dataset(self, name: str) -> Json:
        """Shred a dataset's records for good."""
        return self._object("POST", at("datasets", name, "archive"))

    def destruction(self, name: str, *, backbones: Sequence[str] = ()) -> Json:
        """Return what would be destroyed with a dataset, or was, and what is left of it."""
        options = {"backbone": list(backbones)}
        return self._object("GET", at("datasets", name, "destruction"), params=options)

    def destroy_dataset(self, name: str, *, backbones: Sequence[str] = ()) -> Json:
        """Destroy a dataset and all that was made of it; called again, it tells what is left."""
        body = {"backbones": list(backbones)}
        return self._object("POST", at("datasets", name, "destroy"), json=body)

    def delete_dataset(self, name: str) -> None:
        """Shred a dataset that no certificate and no forget request names."""
        self._answer("DELETE", at("datasets", name))

    def push_records(self, name: str, parquet: bytes, *, replace: bool = False) -> Json:
        """Add the new records of a Parquet file's content; changed ones ``replace`` the stored."""
        options = {"replace": True} if replace else None
        return self._put_file(at("datasets", name, "records"), parquet, params=options)

    def import_records(self, name: str, url: str) -> Json:
        """Have the service read Parquet files by reference; see ``wait_for_import``."""
        return self._object("POST", at("datasets", name, "imports"), json={"url": url})

    def imports(self, name: str) -> list[Json]:
        """Return a dataset's imports, newest first."""
        return self._list(at("datasets", name, "imports"))

    def import_of(self, name: str, import_id: str) -> Json:
        """Return an import and how far it is."""
        return self._object("GET", at("datasets", name, "imports", import_id))

    def cancel_import(self, name: str, import_id: str) -> Json:
        """Cancel an import; what it has added stays."""
        return self._object("POST", at("datasets", name, "imports", import_id, "cancel"))

    def retry_import(self, name: str, import_id: str) -> Json:
        """Let an import go on that failed or was cancelled."""
        return self._object("POST", at("datasets", name, "imports", import_id, "retry"))

    def define_backbone(self, definition: Mapping[str, Any]) -> Json:
        """Define a public backbone; see ``POST /v1/backbones``."""
        return self._object("POST", "/v1/backbones", json=dict(definition))

    def upload_backbone(self, name: str, safetensors: bytes) -> Json:
        """Give a backbone its weights, once."""
        return self._put_file(at("backbones", name, "weights"), safetensors)

    def backbone(self, name: str) -> Json:
        """Return a backbone."""
        return self._object("GET", at("backbones", name))

    def backbones(self) -> list[Json]:
        """Return all backbones, by name."""
        return self._list("/v1/backbones")

    def archive_backbone(self, name: str) -> Json:
        """Shred a backbone's weights for good."""
        return self._object("POST", at("backbones", name, "archive"))

    def delete_backbone(self, name: str) -> None:
        """Delete a backbone that no certificate names."""
        self._answer("DELETE", at("backbones", name))

    def define_model(self, definition: Mapping[str, Any]) -> Json:
        """Define a model; see ``POST /v1/models``."""
        return self._object("POST", "/v1/models", json=dict(definition))

    def model(self, name: str, *, wait_s: int = 0) -> Json:
        """Return a model, its current version and its newest run; see ``request``."""
        return self._news(at("models", name), wait_s)

    def models(self, **filters: str | None) -> list[Json]:
        """Return all models that match ``dataset``, by name."""
        return self._list("/v1/models", **filters)

    def change_policy(self, name: str, changes: Mapping[str, Any]) -> Json:
        """Change fields of a model's policy from its next run on."""
        return self._object("PATCH", at("models", name), json={"policy": dict(changes)})

    def retrain(self, name: str) -> Json:
        """Train a model anew on the records that are there now."""
        return self._object("POST", at("models", name, "retrain"))

    def refill(self, name: str) -> Json:
        """Train the members of an ensemble that are out."""
        return self._object("POST", at("models", name, "refill"))

    def report_audit(self, name: str, *, report_sha256: str, verdict: str) -> None:
        """Write the digest and the verdict of an audit's report to the log."""
        body = {"report_sha256": report_sha256, "verdict": verdict}
        self._answer("POST", at("models", name, "audits"), json=body)

    def archive_model(self, name: str) -> Json:
        """Take a model out of service for good; its certificates stay."""
        return self._object("POST", at("models", name, "archive"))

    def delete_model(self, name: str) -> None:
        """Delete a model that has released nothing."""
        self._answer("DELETE", at("models", name))

    def model_targets(self, name: str) -> list[Json]:
        """Return the targets at which a model is published, or from which it must still go."""
        return self._list(at("models", name, "targets"))

    def publish_model(self, name: str, target: str) -> Json:
        """Publish a model's served version at a target from now on."""
        return self._object("PUT", at("models", name, "targets", target))

    def unpublish_model(self, name: str, target: str) -> Json:
        """Remove all of a model from a target."""
        return self._object("DELETE", at("models", name, "targets", target))

    def derivatives(self, name: str) -> list[Json]:
        """Return what was made of a model's versions, and who was told and has answered."""
        return self._list(at("models", name, "derivatives"))

    def register_derivative(
        self, name: str, derivative: str, *, version: int, contact: str, callback: str
    ) -> Json:
        """Register a model made of a version: its team is told when that is withdrawn."""
        body = {"name": derivative, "version": version, "contact": contact, "callback": callback}
        return self._object("POST", at("models", name, "derivatives"), json=body)

    def acknowledge_derivative(self, name: str, derivative_id: str, answer: str) -> Json:
        """Answer for a derivative that was told: what became of it."""
        path = at("models", name, "derivatives", derivative_id, "acknowledge")
        return self._object("POST", path, json={"answer": answer})

    def upload_weights(self, name: str, safetensors: bytes) -> Json:
        """Upload weights trained elsewhere."""
        return self._put_file(at("models", name, "weights"), safetensors)

    def certified(self, name: str) -> Json:
        """Return the current certified version."""
        return self._object("GET", at("models", name, "certified"))

    def versions(self, name: str, **filters: str | None) -> list[Json]:
        """Return all released versions that match ``state``, newest first."""
        return self._list(at("models", name, "versions"), **filters)

    def model_card(self, name: str, number: int) -> str:
        """Return a version's model card, in Markdown."""
        return self._answer("GET", at("models", name, "versions", number, "card")).text

    def model_signature(self, name: str, number: int) -> Json:
        """Return the OpenSSF Model Signing v1 signature of a version's weights."""
        return self._object("GET", at("models", name, "versions", number, "model.sig"))

    def version_bundle(self, name: str, number: int, *, since: int | None = None) -> Json:
        """Return a version's certificate bundle.

        With ``since``, the size of an older checkpoint, it proves that the log only grew since.
        """
        params = {} if since is None else {"since": since}
        path = at("models", name, "versions", number, "certificate")
        return self._object("GET", path, params=params)

    def certificate(self, certificate_id: str) -> Json:
        """Return a certificate bundle."""
        return self._object("GET", at("certificates", certificate_id))

    def dossier(self, kind: str, name: str, *, given: Mapping[str, bytes] | None = None) -> bytes:
        """Return the dossier of a ``request``, a ``model`` or a ``dataset``, a zip file.

        ``given`` are your own files in it: ``receipts/NAME`` and ``audits/NAME``. They are not
        sent; the service signs their digests.
        """
        from app.evidence.certificates import dossier  # noqa: PLC0415 - slow to import

        own = dict(given or {})
        body = {"kind": kind, "name": name, "given": dossier.digests_of(own)}
        answer = self._object("POST", "/v1/dossiers", json=body)
        return dossier.pack(own | dossier.contents(answer["files"], answer["statement"]))

    def trusted_keys(self) -> bytes:
        """Return the service's own dated list of keys; compare it with another source."""
        return self._answer("GET", "/.well-known/expunge-keys.json").content

    def forget(
        self,
        dataset: str | None = None,
        *,
        record_ids: Sequence[object] = (),
        subject_ids: Sequence[object] = (),
        external_id: str | None = None,
        idempotency_key: str | None = None,
        status_callback_urls: Sequence[str] = (),
        hold: bool = False,
        replacement: Sequence[Json] = (),
    ) -> Json:
        """Ask that records or subjects be forgotten; whole numbers are ids, too.

        Without a dataset, every one that knows the subjects gets one of the ``requests``. With
        ``hold``, nothing is forgotten until it is accepted. Rows of a ``replacement`` take the
        place of what is forgotten.
        """
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        body = {
            **named(dataset, record_ids, subject_ids),
            "external_id": external_id,
            "status_callback_urls": list(status_callback_urls),
            "hold": hold,
            "replacement": list(replacement),
        }
        return self._object("POST", "/v1/forget-requests", json=body, headers=headers)

    def preview_forget(
        self,
        dataset: str | None = None,
        *,
        record_ids: Sequence[object] = (),
        subject_ids: Sequence[object] = (),
    ) -> Json:
        """Return what a forget request would reach and cost; nothing changes."""
        body = named(dataset, record_ids, subject_ids)
        return self._object("POST", "/v1/forget-requests/preview", json=body)

    def request(self, request_id: str, *, wait_s: int = 0) -> Json:
        """Return a forget request; with ``wait_s``, at most 60, as soon as its state changes."""
        return self._news(at("forget-requests", request_id), wait_s)

    def requests(self, **filters: str | None) -> list[Json]:
        """Return all requests that match ``state``, ``model`` and ``external_id``, newest first."""
        return self._list("/v1/forget-requests", **filters)

    def callbacks(self, **filters: str | None) -> list[Json]:
        """Return all callbacks that match ``state`` and ``request``, newest first."""
        return self._list("/v1/callbacks", **filters)

    def redeliver(self, callback_id: str) -> Json:
        """Deliver a callback now, whatever its state."""
        return self._object("POST", at("callbacks", callback_id, "redeliver"))

    def callback_secret(self) -> Json:
        """Return the secret that signs this key's callbacks."""
        return self._object("GET", "/v1/callback-secret")

    def rotate_callback_secret(self) -> Json:
        """Replace that secret; for a day, callbacks are signed with both."""
        return self._object("POST", "/v1/callback-secret/rotate")

    def decide(self, request_id: str, decision: str, **why: str | None) -> Json:
        """Accept, refuse (``ground``, ``explanation``), reopen or extend (``reason``) a request."""
        return self._object("POST", at("forget-requests", request_id, decision), json=why or None)

    def retry(self, request_id: str) -> Json:
        """Give a failed request another run."""
        return self._object("POST", at("forget-requests", request_id, "retry"))

    def cancel(self, request_id: str) -> Json:
        """Cancel a request that no run has started on; its records stay forgotten."""
        return self._object("DELETE", at("forget-requests", request_id))

    def certificates_of(self, request_id: str, *, since: int | None = None) -> list[Json]:
        """Return a request's certificates; each proves that the log grew from size ``since``."""
        return self._list(at("forget-requests", request_id, "certificates"), since=since)

    def run(self, run_id: str, *, wait_s: int = 0) -> Json:
        """Return a run; with ``wait_s``, at most 60, as soon as there is news of its progress."""
        return self._news(at("runs", run_id), wait_s)

    def runs(self, **filters: str | None) -> list[Json]:
        """Return all runs that match ``model`` and ``state``, newest first."""
        return self._list("/v1/runs", **filters)

    def cancel_run(self, run_id: str) -> Json:
        """End a run that is queued or going; its obligations wait for the model's next run."""
        return self._object("POST", at("runs", run_id, "cancel"))

    def retry_run(self, run_id: str) -> Json:
        """Start a new run like one that failed or was cancelled."""
        return self._object("POST", at("runs", run_id, "retry"))

    def create_key(
        self, name: str, scopes: Sequence[str], *, expires_at: datetime | None = None
    ) -> Json:
        """Create an API key; the answer holds its secret."""
        expiry = {} if expires_at is None else {"expires_at": expires_at.isoformat()}
        body = {"name": name, "scopes": list(scopes), **expiry}
        return self._object("POST", "/v1/api-keys", json=body)

    def keys(self) -> list[Json]:
        """Return all keys and callers, newest first."""
        return self._list("/v1/api-keys")

    def revoke_key(self, key_id: str) -> None:
        """Revoke an API key."""
        self._answer("DELETE", at("api-keys", key_id))

    def audit(self, *, limit: int, **filters: str | None) -> Iterator[Json]:
        """Yield the newest entries of the audit trail that match ``caller`` and ``kind``."""
        page = min(limit, _LARGEST_PAGE)
        return islice(self._items("/v1/audit", limit=page, **filters), limit)

    def plans(self, policy: Mapping[str, Any], *, model: str) -> Json:
        """Return every mechanism's quote for a policy and a model."""
        return self._object("POST", "/v1/plans", json={"policy": dict(policy), "model": model})

    def log_checkpoint(self) -> str:
        """Return the transparency log's newest checkpoint, a signed note."""
        return self._answer("GET", "/v1/log/checkpoint").text

    def log_entry(self, index: int) -> Json:
        """Return one entry of the log; they count from 0."""
        return self._object("GET", at("log", "entries", index))

    def prove_inclusion(self, index: int, size: int) -> Json:
        """Return the proof that an entry is among the first ``size``."""
        options = {"index": index, "size": size}
        return self._object("GET", "/v1/log/proofs/inclusion", params=options)

    def prove_consistency(self, old_size: int, new_size: int) -> Json:
        """Return the proof that the first ``new_size`` entries begin with ``old_size``."""
        options = {"from": old_size, "to": new_size}
        return self._object("GET", "/v1/log/proofs/consistency", params=options)

    def download(
        self,
        name: str,
        directory: str | Path,
        *,
        trusted: bytes | str | Path,
        kept: Path | None = None,
        number: int | None = None,
        report: "Callable[[VerifiedStep], None]" = lambda _step: None,
    ) -> Downloaded:
        """Download a version's weights and certificate, and verify them, as ``download`` says."""
        return download(
            self, name, directory, trusted=trusted, kept=kept, number=number, report=report
        )

    def wait_for_request(
        self,
        request_id: str,
        *,
        timeout_s: float,
        on_change: Callable[[Json, Json | None], None] | None = None,
    ) -> Json:
        """Wait until a request has ended; if the service is unreachable for a while, wait for it.

        ``on_change`` is called with the request and its run at every progress of either.

        Raises:
            TimeoutError: it has not ended in time.
        """

        def run_of(request: Json) -> str | None:
            run_ids = [o["run"] for o in request["obligations"] if o["run"] is not None]
            return run_ids[-1] if run_ids and on_change is not None else None

        look = self._with_its_run(at("forget-requests", request_id), run_of)
        for request, run in self._seen_until(timeout_s, look):
            if on_change is not None:
                on_change(request, run)
            if request["state"] in _ENDED:
                return request
        raise TimeoutError(f"request {request_id} has not ended within {timeout_s:g} s")

    def wait_for_model(
        self, name: str, *, timeout_s: float, on_change: Callable[[Json], None] | None = None
    ) -> Json:
        """Wait until a model's newest run has ended; wait while the service is away.

        A model that waits for its weights has no run, and is returned as it is.

        Raises:
            TimeoutError: it has not ended in time.
        """

        def run_of(model: Json) -> str | None:
            run = model["latest_run"]
            return None if run is None or on_change is None else run["id"]

        for model, _ in self._seen_until(timeout_s, self._with_its_run(at("models", name), run_of)):
            run = model["latest_run"]
            if run is None and model["weights"] == "upload":
                return model
            if run is not None:
                if on_change is not None:
                    on_change(run)
                if run["state"] not in _GOING:
                    return model
        raise TimeoutError(f"model {name} has no version within {timeout_s:g} s")

    def wait_for_import(
        self,
        name: str,
        import_id: str,
        *,
        timeout_s: float,
        on_change: Callable[[Json], None] = lambda _import: None,
    ) -> Json:
        """Wait until an import has ended; wait while the service is away.

        Raises:
            TimeoutError: it has not ended in time.
        """
        held = Held(self.http, at("datasets", name, "imports", import_id))
        for seen in self._seen_until(timeout_s, held.news):
            on_change(seen)
            if seen["state"] in _ENDED:
                return seen
        raise TimeoutError(f"import {import_id} has not ended within {timeout_s:g} s")

    def _with_its_run(
        self, path: str, run_of: Callable[[Json], str | None]
    ) -> Callable[[float], tuple[Json, Json | None]]:
        """Return what waits for news of a resource, or of the run that it waits for."""
        whole, run = Held(self.http, path), None

        def look(wait_s: float) -> tuple[Json, Json | None]:
            nonlocal run
            is_going = run is not None and run.seen.get("state") in _GOING
            if run is not None and is_going:
                run.news(wait_s)
            found = whole.news(0 if is_going else wait_s)
            run_id = run_of(found)
            if run_id is not None:
                if run is None or run.path != at("runs", run_id):
                    run = Held(self.http, at("runs", run_id))
                if not run.seen:
                    run.news(0)
            return found, None if run is None else run.seen

        return look

    def _seen_until(self, timeout_s: float, look: Callable[[float], _Seen]) -> Iterator[_Seen]:
        """Yield what there is to see, repeatedly, until the time is over.

        Nothing is yielded while the service is unreachable or asks to wait.
        """
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - (asked := time.monotonic())) > 0:
            try:
                seen = look(min(self._hold_s, left_s))
            except httpx.TransportError:
                seen = None
            except ApiError as error:
                if error.status not in (429, 502, 503, 504):
                    raise
                seen = None
            if seen is not None:
                yield seen
            if time.monotonic() - asked < _POLL_S:
                time.sleep(_POLL_S)

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:  # noqa: ANN401
        if method in ("POST", "PUT"):
            options["headers"] = {"Idempotency-Key": str(uuid4()), **options.get("headers", {})}
        return checked(self._retry.call(lambda: self.http.request(method, path, **options)))

    def _news(self, path: str, wait_s: int) -> Json:
        if wait_s == 0:
            return self._object("GET", path)
        prefer = {"Prefer": f"wait={wait_s}"}
        return self._object("GET", path, headers=prefer, timeout=_TIMEOUT_S + wait_s)

    def _object(self, method: str, path: str, **options: Any) -> Json:  # noqa: ANN401
        answer: Json = strict_json.loads(self._answer(method, path, **options).content)
        return answer

    def _put_file(self, path: str, content: bytes, **options: Any) -> Json:  # noqa: ANN401
        """Send a file in pieces: whatever is left of one is copied after each write."""
        whole = memoryview(content)
        pieces = [whole[at : at + _PIECE_BYTES] for at in range(0, len(whole), _PIECE_BYTES)]
        headers = {"Content-Length": str(len(content))}
        return self._object("PUT", path, content=pieces, headers=headers, **options)

    def _list(self, path: str, **filters: str | int | None) -> list[Json]:
        return list(self._items(path, **filters))

    def _items(self, path: str, **filters: str | int | None) -> Iterator[Json]:
        """Yield the items of a list, page by page; some lists are a plain array."""
        query = {name: value for name, value in filters.items() if value is not None}
        while True:
            page = strict_json.loads(self._answer("GET", path, params=query).content)
            yield from page if isinstance(page, list) else page["items"]
            if isinstance(page, list) or page.get("next_cursor") is None:
                return
            query["cursor"] = page["next_cursor"]
