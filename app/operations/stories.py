"""What each kind of entry changes in the rows it names."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select

from app.domain.states import (
    ObligationState,
    RequestState,
    RunState,
    SubjectRequestStatus,
    VersionState,
)
from app.evidence import log
from app.ledger.tables import ObligationRow, RunRow, SubjectRequestRow
from app.operations import story_rows
from app.operations.feature_stories import (
    API_KEYS,
    CALLBACK_SECRETS,
    COPIES,
    IMPORTS,
    PLACEMENTS,
    SIGNING_KEYS,
)
from app.operations.replay import Columns, Rule, Story
from app.operations.story_rules import (
    ENDED,
    LIVE,
    born,
    born_or_changed,
    both,
    counts,
    endings,
    moment,
    sets,
    takes,
)
from app.registry import repository as registry
from app.registry.backbones import repository as backbones
from app.registry.backbones.tables import BackboneRow
from app.registry.datasets import digests
from app.registry.tables import ModelRow, VersionRow

# Datasets and their records


def _at_epoch(facts: Mapping[str, Any], row: Columns) -> Columns:
    return {"forget_epoch": max(row["forget_epoch"], facts["epoch"])}


def _returned_at(facts: Mapping[str, Any], row: Columns) -> Columns:
    return {"forget_epoch": max(row["forget_epoch"], facts.get("returned_at", 0))}


_DATASETS = Story(
    name="dataset",
    rows=story_rows.DATASETS,
    derived={"definition": digests.of_dataset, **ENDED},
    rules={
        "dataset.defined": born(
            takes(definition="definition"), sets(forget_epoch=0, records=0, erased=0, **LIVE)
        ),
        "records.pushed": counts("records"),
        "records.erased": counts("erased"),
        "records.lost": _at_epoch,
        "records.given_up": _at_epoch,
        **endings("dataset"),
        "request.accepted": _at_epoch,
        "request.cancelled": _returned_at,
    },
)

_LOST_RECORDS = Story(
    name="records forgotten at",
    named_by="mark",
    rows=story_rows.MARKS_OF_NO_REQUEST,
    rules={
        kind: born(takes(marked="marked", marks="marks"))
        for kind in ("records.lost", "records.given_up")
    },
)

_RETURNS_OF_NO_REQUEST = Story(
    name="records that came back at",
    named_by="mark",
    rows=story_rows.RETURNS_OF_NO_REQUEST,
    rules={},
)

# Requests and their obligations

_REQUEST_FACTS = {
    "dataset_id": "dataset",
    "api_key_id": "key",
    "forget_epoch": "epoch",
    "record_count": "records",
    "push_count": "pushes",
    "named": "records",
    "names": "names",
    "marked": "marked",
    "marks": "marks",
}


def _accepted(facts: Mapping[str, Any], row: Columns) -> Columns:
    if row:
        if "epoch" in facts:
            raise ValueError("accepted twice")
        return {"state": RequestState.ACCEPTED}
    return {
        "state": RequestState.ACCEPTED,
        **{column: facts[name] for column, name in _REQUEST_FACTS.items()},
        "received_at": moment(facts["received_at"]),
        "due_at": moment(facts["due_at"]),
        "subject_request_id": facts.get("subject_request"),
        "completed_at": None,
        "returned_at": None,
        "restored": 0,
        "returns": digests.of_marks([]),
        "due_soon_noted": False,
        "overdue_noted": False,
    }


def _completed(facts: Mapping[str, Any], _row: Columns) -> Columns:
    at = moment(facts["completed_at"])
    return {"state": RequestState.COMPLETED, "completed_at": at, "left": 0}


def _cancelled(facts: Mapping[str, Any], _row: Columns) -> Columns:
    kept = ("restored", "returned_at", "returns", "marked", "marks") if facts["restored"] else ()
    return {"state": RequestState.CANCELLED, **{name: facts[name] for name in kept}}


_REQUESTS = Story(
    name="request",
    rows=story_rows.REQUESTS,
    rules={
        **{
            f"request.{state}": sets(state=state)
            for state in (RequestState.UNLEARNING, RequestState.CERTIFIED, RequestState.FAILED)
        },
        "request.accepted": born_or_changed(_accepted),
        "request.completed": _completed,
        "request.cancelled": _cancelled,
        "request.due_soon": sets(due_soon_noted=True),
        "request.overdue": sets(overdue_noted=True),
    },
    ends=frozenset({"request.completed", "request.cancelled"}),
)


def _owed(state: str) -> Rule:
    def rule(facts: Mapping[str, Any], row: Columns) -> Columns:
        fixed = {"request_id": facts["request"], "model_id": facts["model"]}
        if state != ObligationState.CERTIFIED:  # which may be for another reason than was expected
            fixed["basis"] = facts["basis"]
        if row and any(row[column] != value for column, value in fixed.items()):
            raise ValueError("another request's or model's")
        run, certificate = facts["run"], facts["certificate"]
        return {
            **fixed,
            "basis": facts["basis"],
            "state": state,
            "run_id": run,
            "certificate_id": certificate,
        }

    return rule


_OBLIGATIONS = Story(
    name="obligation",
    rows=select(*ObligationRow.__table__.columns),
    rules={f"obligation.{state}": _owed(state) for state in ObligationState}
    | {
        f"obligation.{state}": born_or_changed(_owed(state))
        for state in (ObligationState.OPEN, ObligationState.CERTIFIED)
    },
    ends=frozenset({"obligation.certified", "obligation.cancelled"}),
)


def _received(facts: Mapping[str, Any], _row: Columns) -> Columns:
    at = moment(facts["received_at"])
    return {"api_key_id": facts["key"], "received_at": at, "due_at": at}


def _due_with(facts: Mapping[str, Any], row: Columns) -> Columns:
    """A subject request is due with the last of its forget requests."""
    return {"due_at": max(row["due_at"], datetime.fromisoformat(facts["due_at"]))}


_SUBJECT_REQUESTS = Story(
    name="subject request",
    rows=select(*SubjectRequestRow.__table__.columns),
    rules={
        "subject_request.received": born(_received),
        "request.accepted": _due_with,
        **{f"subject_request.{status}": sets(status=status) for status in SubjectRequestStatus},
    },
)

# Models, their runs and versions

_MEMBERSHIP = takes(trained_through="trained_through", trained_after_epoch="trained_after_epoch")
_WITHOUT_WEIGHTS = {
    **dict.fromkeys(("trained_through", "trained_after_epoch", "head_version_id")),
    "imported_blob_id": None,
    "tracking": log.digest_of(None),
}


def _policy(facts: Mapping[str, Any], _row: Columns) -> Columns:
    return {"policy": log.plain(facts["policy"])}


_MODELS = Story(
    name="model",
    rows=select(*ModelRow.__table__.columns),
    derived={
        "definition": registry.digest_of,
        "policy": lambda row: log.plain(row.policy),
        "tracking": lambda row: log.digest_of(row.tracking),
        **ENDED,
    },
    rules={
        "model.defined": born(
            takes(definition="definition"), _policy, sets(**_WITHOUT_WEIGHTS, **LIVE)
        ),
        "policy.changed": _policy,
        "weights.imported": both(_MEMBERSHIP, takes(imported_blob_id="blob")),
        "version.published": both(
            _MEMBERSHIP,
            takes(head_version_id="version", tracking="tracking"),
            sets(imported_blob_id=None),
        ),
        "version.covers": takes(tracking="tracking"),
        "model.withdrawn": sets(**_WITHOUT_WEIGHTS),
        **endings("model"),
    },
)

_RUNS = Story(
    name="run",
    rows=select(*RunRow.__table__.columns),
    derived={"plan": lambda row: log.digest_of(row.plan)},
    rules={
        "run.queued": born(
            takes(model_id="model", kind="run_kind", plan="plan"),
            sets(state=RunState.QUEUED, attempt=0, forget_epoch=None, trained_through=None),
        ),
        "run.leased": both(takes(attempt="attempt"), sets(state=RunState.LEASED)),
        "run.running": both(
            takes(forget_epoch="forget_epoch", trained_through="trained_through"),
            sets(state=RunState.RUNNING),
        ),
        "run.planned": takes(plan="plan"),
        "run.requeued": both(takes(attempt="attempt"), sets(state=RunState.QUEUED)),
        **{
            f"run.{state}": both(takes(attempt="attempt"), sets(state=state))
            for state in (RunState.FAILED, RunState.CANCELLED)
        },
        "version.published": sets(state=RunState.PUBLISHED),
    },
    ends=frozenset({"run.failed", "run.cancelled", "version.published"}),
)

_VERSION_FACTS = {
    "model_id": "model",
    "run_id": "run",
    "number": "number",
    "state": "state",
    "certificate_id": "certificate",
    "sha256": "sha256",
    "tensors_sha256": "tensors_sha256",
    "blob_id": "blob",
    "statistics_blob_id": "statistics",
    "size_bytes": "size_bytes",
    "covers_epoch": "covers_epoch",
    "trained_through": "trained_through",
    "trained_after_epoch": "trained_after_epoch",
    "since_version": "since_version",
}


def _withheld(facts: Mapping[str, Any], _row: Columns) -> Columns:
    return {"withheld": facts["state"] == VersionState.PRIVATE}


_VERSIONS = Story(
    name="version",
    rows=select(
        VersionRow.id, VersionRow.withheld, *(getattr(VersionRow, name) for name in _VERSION_FACTS)
    ),
    rules={
        "version.published": born(takes(**_VERSION_FACTS), _withheld),
        "version.covers": takes(covers_epoch="covers_epoch", certificate_id="certificate"),
        "statistics.lost": sets(statistics_blob_id=None),
        "version.retired": sets(state="retired"),
        "version.shredded": sets(state="shredded"),
    },
    ends=frozenset({"version.shredded"}),
)

_WEIGHTS = {"blob_id": "blob", "sha256": "sha256", "size_bytes": "size_bytes"}
_WHITENED = {**_WEIGHTS, "whitening": "whitening"}
_NO_WEIGHTS = dict.fromkeys(_WHITENED)
_BACKBONES = Story(
    name="backbone",
    rows=select(*BackboneRow.__table__.columns),
    derived={"definition": backbones.digest_of, **ENDED},
    rules={
        "backbone.defined": born(takes(definition="definition"), sets(**_NO_WEIGHTS, **LIVE)),
        "backbone.uploaded": takes(**_WEIGHTS),
        "backbone.whitened": takes(**_WHITENED),
        "backbone.lost": sets(**_NO_WEIGHTS),
        **endings("backbone"),
    },
)

STORIES = (
    _DATASETS,
    IMPORTS,
    _LOST_RECORDS,
    _RETURNS_OF_NO_REQUEST,
    _REQUESTS,
    _OBLIGATIONS,
    _SUBJECT_REQUESTS,
    _MODELS,
    _RUNS,
    _VERSIONS,
    _BACKBONES,
    PLACEMENTS,
    COPIES,
    API_KEYS,
    SIGNING_KEYS,
    CALLBACK_SECRETS,
)
"""Every table that the log describes, except certificates: those carry signatures."""
