"""An audit from beginning to end, through the ordinary API alone.

1. read the audited model's definition and its dataset's columns; they are only read
2. define a dataset and, for a reference, a model of the same definition; train and download it
3. push canaries, define a model of the same definition, and wait until it is trained
4. download that release, if there is one: what the attack sees in it is the control
5. forget all canaries, and wait for the certificate
6. download the release and verify its certificate with the request's receipt: it must cover every
   canary, and promise no less than the audited model's does
7. score both contents of each canary by three attacks, guess the coins, and compare
8. archive all that was made, also after an error or an interruption
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pyarrow as pa

from app.client import ApiError, ExpungeClient
from app.client.download import Downloaded, bundle_bytes
from app.client.published import read_published
from app.domain.architectures import ENSEMBLE, ArchitectureSpec
from app.domain.errors import InvalidInputError, VerificationError
from app.domain.schema import TableSchema
from app.domain.states import FirstRelease
from app.domain.tasks import catalogue
from app.domain.tasks.spec import TaskSpec
from app.evidence.certificates import verification
from app.registry.datasets.columns.parquet import to_parquet
from workers.audit import report
from workers.audit.canaries import Canaries, prepare
from workers.audit.scores import scores
from workers.training.published.model import PublishedModel, assembled

_UPLOAD_BYTES: Final = 8 << 20
_WAIT_S: Final = 24 * 3600.0
_NOT_COPIED: Final = {
    "window_s": 0.0,  # nobody else's requests are waited for
    "minimum_score": None,  # targets of canaries are random
    "retrain_every_s": None,
    "retrain_after_records": None,
}
Tell = Callable[[str, Mapping[str, Any] | None], None]


class LeftBehindError(InvalidInputError):
    """Something that the audit made could not be archived; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What is audited, and how.

    Attributes:
        rows: the auditor's own, with the columns that the model reads; None generates some.
        directory: where release and certificate go.
        name: of the dataset and of the models that the audit makes.
        canaries, guesses: how many pairs, and how many of their coins are guessed.
        factories, base: as for ``workers.training.published.model.load``.
        tell: called with what is going on, and a run.
    """

    client: ExpungeClient
    model: str
    rows: pa.Table | None
    trusted: bytes
    directory: Path
    name: str
    canaries: int
    guesses: int
    confidence: float
    factories: Sequence[str] = ()
    base: Path | None = None
    tell: Tell = field(default=lambda _what, _run: None)

    def run(self) -> report.Report:
        """Carry the audit out.

        Raises:
            InvalidInputError: the model or the rows cannot be audited, or a run failed.
            VerificationError: a certificate does not hold.
            LeftBehindError: as it says.
        """
        if not 1 <= self.guesses <= self.canaries or not 0 < self.confidence < 1:
            raise InvalidInputError(
                "there must be 1 to --canaries guesses, and a --confidence between 0 and 1"
            )
        started = datetime.now(UTC)
        audited = self.client.model(self.model)
        dataset = self.client.dataset(audited["dataset"])
        task = catalogue.from_json(audited["task"])
        schema = _needed(dataset, task)
        canaries = prepare(self.rows, task, schema, self.canaries)
        definition = {name: audited[name] for name in ("architecture", "task", "recipe")}
        definition["policy"] = audited["policy"] | _NOT_COPIED
        self._require_new()
        promised = self._promised(audited)
        is_ensemble = ArchitectureSpec.from_json(audited["architecture"]).name == ENSEMBLE
        with self._archived_afterwards() as made:
            made.dataset = self.name
            self.client.define_dataset(
                self.name, schema.to_json()["columns"], record_id=schema.record_id
            )
            # The sizes of uploads must not tell which contents were chosen.
            row_bytes = max(1, canaries.others.nbytes // canaries.others.num_rows)
            self._push(canaries.others, row_bytes)
            reference = None if is_ensemble else self._reference(definition, made)
            self._push(canaries.chosen(), row_bytes)
            self._train(self.name, definition, made)
            before = None
            if definition["policy"]["first_release"] != FirstRelease.NONE:
                before = self._passing(self.name, definition).model
            request = self._forget(canaries.ids)
            released = self._download(self.name, self.directory, definition)
            self._require_covered(released, request, canaries.ids)
        claim = report.claim_of(released.predicate)
        if claim is None or any(ours > most for ours, most in zip(claim, promised, strict=True)):
            raise InvalidInputError(
                f"the copy's certificate promises (ε, δ) = {claim or 'nothing'}, the audited model "
                f"{promised}: the promise of a copy that is worth less is not audited"
            )
        self.tell("scoring", None)
        return self._judged(audited, canaries, released, (before, reference), started)

    def _promised(self, audited: Mapping[str, Any]) -> tuple[float, float]:
        """Return ε and δ that the copy may have at most: by the certificate, or else the policy."""
        policy = audited["policy"]
        if audited["certified"] is None:
            return policy["epsilon"], policy["delta"]
        number = audited["certified"]["number"]
        bundle = bundle_bytes(self.client.version_bundle(self.model, number))
        predicate = verification.verify(bundle=bundle, weights=None, trusted=self.trusted)
        if predicate["model"] != {"name": self.model, "version": number}:
            raise VerificationError("subject", "the certificate names another model or version")
        if report.claim_of(predicate) == (0.0, 0.0):
            return 0.0, 0.0
        target = predicate.get("target", policy)
        return target["epsilon"], target["delta"]

    def _require_new(self) -> None:
        """Refuse names that are taken: what has them must not be archived in the end."""
        for look, name in (
            (self.client.dataset, self.name),
            (self.client.model, self.name),
            (self.client.model, f"{self.name}-reference"),
        ):
            try:
                look(name)
            except ApiError as error:
                if error.status != httpx.codes.NOT_FOUND:
                    raise
            else:
                raise InvalidInputError(f"{name!r} exists already: give another --name")

    def _reference(self, definition: Mapping[str, Any], made: "_Made") -> PublishedModel:
        name, policy = f"{self.name}-reference", definition["policy"]
        if policy["first_release"] == FirstRelease.NONE:
            policy = policy | {"first_release": FirstRelease.CERTIFY}
        self._train(name, {**definition, "policy": policy}, made)
        reference = self._passing(name, definition).model
        self.client.archive_model(name)
        made.models.remove(name)
        return reference

    def _push(self, rows: pa.Table, row_bytes: int) -> None:
        self.tell("pushing", None)
        at_once = max(1, _UPLOAD_BYTES // row_bytes)
        for start in range(0, rows.num_rows, at_once):
            self.client.push_records(self.name, to_parquet(rows.slice(start, at_once)))

    def _train(self, name: str, definition: Mapping[str, Any], made: "_Made") -> None:
        made.models.append(name)
        self.client.define_model({**definition, "name": name, "dataset": self.name})
        self.tell(f"training {name}", None)
        run = self.client.wait_for_model(
            name, timeout_s=_WAIT_S, on_change=lambda run: self.tell(f"training {name}", run)
        )["latest_run"]
        if run["state"] != "published":
            raise InvalidInputError(
                f"the training of the copy {run['state']}: {run['failure_reason'] or 'cancelled'}"
            )

    def _forget(self, ids: Sequence[str]) -> Mapping[str, Any]:
        request = self.client.forget(self.name, record_ids=ids)
        self.tell("forgetting", None)
        ended = self.client.wait_for_request(
            request["id"],
            timeout_s=_WAIT_S,
            on_change=lambda _, run: self.tell("forgetting", run),
        )
        if ended["state"] != "completed":
            raise InvalidInputError(
                f"the request {ended['state']}: {ended['failure_reason'] or 'no reason given'}"
            )
        return request

    def _require_covered(
        self, released: "_Released", request: Mapping[str, Any], ids: Sequence[str]
    ) -> None:
        """Check the receipt of the request: that the certificate is about these very ids."""
        receipt = {name: request[name] for name in ("receipt_salt", "records")}
        if receipt["records"] != len(ids):
            raise InvalidInputError(
                f"the service found {receipt['records']} of {len(ids)} canaries"
            )
        bundles = self.client.certificates_of(request["id"])
        if len(bundles) != 1:
            raise InvalidInputError("the request has other certificates than that of the copy")
        predicate = verification.verify(
            bundle=bundle_bytes(bundles[0]["bundle"]),
            weights=released.files.weights,
            trusted=self.trusted,
            receipt=json.dumps(receipt | {"record_ids": list(ids)}).encode(),
        )
        if predicate != released.predicate:
            raise VerificationError("receipt", "the request has another certificate")

    def _passing(self, name: str, definition: Mapping[str, Any]) -> "_Released":
        """Return a release of which no file is kept."""
        with tempfile.TemporaryDirectory() as directory:
            return self._download(name, Path(directory), definition)

    def _download(self, name: str, directory: Path, definition: Mapping[str, Any]) -> "_Released":
        files = self.client.download(name, directory, trusted=self.trusted)
        published = read_published(
            files.weights, certificate=files.certificate, trusted=self.trusted
        )
        found = published.description
        if (found.architecture, found.task) != (
            ArchitectureSpec.from_json(definition["architecture"]),
            catalogue.from_json(definition["task"]),
        ):
            raise InvalidInputError(f"{name} was released as another model than was defined")
        model = assembled(published, factories=self.factories, base=self.base)
        return _Released(files, model, published.predicate or {})

    def _judged(
        self,
        audited: Mapping[str, Any],
        canaries: Canaries,
        released: "_Released",
        compared: tuple[PublishedModel | None, PublishedModel | None],
        started: datetime,
    ) -> report.Report:
        before, reference = compared

        def scores_of(model: PublishedModel) -> list[list[list[float]]]:
            return scores(model, reference, canaries.contents, factories=self.factories)

        return report.Report.of(
            audited={
                "model": self.model,
                "version": None if audited["certified"] is None else audited["certified"]["number"],
                "weights": audited["weights"],
            },
            release=released.files,
            predicate=released.predicate,
            method={
                "canaries": self.canaries,
                "guesses": self.guesses,
                "confidence": self.confidence,
                "other_records": canaries.others.num_rows,
                "rows": "generated" if self.rows is None else "brought by the auditor",
                "score": "better, worse, and belief: "
                + (
                    "one member's likelihood against the others'"
                    if reference is None
                    else "loss against a reference without canaries"
                ),
            },
            scores=scores_of(released.model),
            before=None if before is None else scores_of(before),
            coins=canaries.coins,
            started_at=started,
        )

    @contextmanager
    def _archived_afterwards(self) -> "Iterator[_Made]":
        made = _Made()
        try:
            yield made
        finally:
            self.tell("archiving", None)
            left = made.archive(self.client)
            if left:
                raise LeftBehindError(
                    "what the audit made could not be archived; when the service answers, run: "
                    + "; ".join(left)
                )


class _Released(NamedTuple):
    files: Downloaded
    model: PublishedModel
    predicate: Mapping[str, Any]


@dataclass
class _Made:
    """What is to be archived: also what may not have come to be."""

    dataset: str | None = None
    models: list[str] = field(default_factory=list)

    def archive(self, client: ExpungeClient) -> list[str]:
        """Archive it all; return the commands that would archive what is left."""
        steps = [("model", each, client.archive_model) for each in reversed(self.models)]
        if self.dataset is not None:
            steps.append(("dataset", self.dataset, client.archive_dataset))
        left = []
        for kind, name, archive in steps:
            try:
                archive(name)
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the rest is archived
                gone = (httpx.codes.NOT_FOUND, httpx.codes.GONE)
                if not (isinstance(error, ApiError) and error.status in gone):
                    left.append(f"expunge {kind} archive {name}")
        return left


def _needed(dataset: Mapping[str, Any], task: TaskSpec) -> TableSchema:
    """Return the columns that the task reads, or all if it does not say; without persons."""
    columns = {
        name: kind
        for name, kind in dataset["columns"].items()
        if name in task.columns or not task.columns
    }
    return TableSchema.of(columns, record_id=dataset["record_id"])
