"""The client's calls: one method for each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.client.connection import ApiError, Json, at, error_of
from app.client.download import (
    Announced,
    Downloaded,
    bundle_bytes,
    certify,
    discard_older,
    fetch,
    target_of,
)
from app.client.kept_checkpoint import CHECKPOINT_FILENAME, KeptCheckpoint, kept_checkpoint
from app.client.sources import Sources
from app.client.waiting import Waiting
from app.domain.errors import DownloadError, VerificationError
from app.domain.owners_ids import id_of

if TYPE_CHECKING:
    from app.evidence.certificates.verification import VerifiedStep

_LARGEST_PAGE = 200


class ExpungeClient(Sources, Waiting):
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

    def archive_model(self, name: str) -> Json:
        """Take a model out of service for good; its certificates stay."""
        return self._object("POST", at("models", name, "archive"))

    def delete_model(self, name: str) -> None:
        """Delete a model that has released nothing."""
        self._answer("DELETE", at("models", name))

    def model_targets(self, name: str) -> list[Json]:
        """Return the targets at which a model is published, or from which it must still go."""
        return list(self._answer("GET", at("models", name, "targets")).json())

    def publish_model(self, name: str, target: str) -> Json:
        """Publish a model's served version at a target from now on."""
        return self._object("PUT", at("models", name, "targets", target))

    def unpublish_model(self, name: str, target: str) -> Json:
        """Remove all of a model from a target."""
        return self._object("DELETE", at("models", name, "targets", target))

    def upload_weights(self, name: str, safetensors: bytes) -> Json:
        """Upload weights trained elsewhere."""
        return self._object("PUT", at("models", name, "weights"), content=safetensors)

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
        answer = self._answer("GET", at("models", name, "versions", number, "model.sig"))
        return dict(answer.json())

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
    ) -> Json:
        """Ask that records or subjects be forgotten; whole numbers are ids, too.

        Without a dataset, every one that knows the subjects gets a request: they are in
        ``requests``.
        """
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        body = {
            "dataset": dataset,
            "record_ids": [id_of(each) for each in record_ids],
            "subject_ids": [id_of(each) for each in subject_ids],
            "external_id": external_id,
            "status_callback_urls": list(status_callback_urls),
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
        body = {
            "dataset": dataset,
            "record_ids": [id_of(each) for each in record_ids],
            "subject_ids": [id_of(each) for each in subject_ids],
        }
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

    def retry(self, request_id: str) -> Json:
        """Give a failed request another run."""
        return self._object("POST", at("forget-requests", request_id, "retry"))

    def cancel(self, request_id: str) -> Json:
        """Cancel a request that no run has started on; its records stay forgotten."""
        return self._object("DELETE", at("forget-requests", request_id))

    def certificates_of(self, request_id: str, *, since: int | None = None) -> list[Json]:
        """Return the certificates of a request's obligations, for use with its receipt.

        With ``since``, the size of an older checkpoint, each proves that the log only grew since.
        """
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
        body: dict[str, Any] = {"name": name, "scopes": list(scopes)}
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        return self._object("POST", "/v1/api-keys", json=body)

    def keys(self) -> list[Json]:
        """Return all keys and callers, newest first."""
        return self._list("/v1/api-keys")

    def revoke_key(self, key_id: str) -> None:
        """Revoke an API key."""
        self._answer("DELETE", at("api-keys", key_id))

    def audit(self, *, limit: int, **filters: str | None) -> Iterator[Json]:
        """Yield the newest entries of the audit trail that match ``caller`` and ``kind``."""
        entries = self._items("/v1/audit", limit=min(limit, _LARGEST_PAGE), **filters)
        return islice(entries, limit)

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
        """Download a version's weights and certificate, and verify them.

        A download that was interrupted is continued; partial files of versions that are no longer
        current are removed. The weights get their name only once the certificate holds.

        Args:
            name: the model.
            directory: where the files go; it is made if it is missing.
            trusted: the operator's ``trusted-keys.json``, or its content, not received from this
                service.
            kept: where the log's newest checkpoint is kept from one download to the next; a file in
                ``directory`` if not given. The log must have only grown since.
            number: the version; the current certified one if not given.
            report: called with each step of the verification that passed.

        Raises:
            ApiError: the service refuses; 410 for a version that was retired.
            DownloadError: interrupted, or not what was announced; the message says what to do.
            VerificationError: the certificate does not hold.
        """
        keys = trusted if isinstance(trusted, bytes) else Path(trusted).read_bytes()
        version = Announced.from_answer(name, self._version(name, number))
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        if number is None:
            discard_older(version, directory)
        target = target_of(version, directory)
        part = fetch(self._http, version, target, error_of=error_of)
        with kept_checkpoint(kept or directory / CHECKPOINT_FILENAME) as checkpoint:
            bundle = self._bundle_since(name, version.number, checkpoint)
            files = certify(
                version,
                part,
                target,
                bundle=bundle_bytes(bundle),
                trusted=keys,
                consistent_with=checkpoint.note,
                report=report,
            )
            checkpoint.replace(str(bundle["log"]["checkpoint"]))
        return files

    def _bundle_since(self, name: str, number: int, checkpoint: KeptCheckpoint) -> Json:
        try:
            return self.version_bundle(name, number, since=checkpoint.size)
        except ApiError as error:
            if checkpoint.size is None or error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            raise VerificationError(
                "history", f"the log is shorter than the one known from {checkpoint.path}"
            ) from error

    def _version(self, name: str, number: int | None) -> Json:
        if number is None:
            return self.certified(name)
        for version in self.versions(name):
            if version["number"] == number:
                return version
        raise DownloadError(f"model {name!r} has released no version {number}")
