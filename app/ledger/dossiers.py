"""What the service puts into a dossier about a request, a model or a dataset, and signs.

See ``app/evidence/certificates/dossier.py`` for its form and what it proves.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.delivery import derivatives
from app.delivery.publishing.tables import CopyRow, PlacementRow
from app.domain.errors import InvalidInputError
from app.domain.states import ObligationState, VersionState
from app.evidence.certificates.dossier import digests_of, statement_about
from app.evidence.certificates.note import WitnessKey
from app.evidence.certificates.plain_words import guarantee_in_words
from app.evidence.certificates.signing import StatementSigner, statement_of
from app.evidence.log import checkpoints
from app.evidence.log.tables import LogEntryRow
from app.evidence.questions import Answer, answers_html
from app.ledger.certificates import bundles, issuing
from app.ledger.models import destruction
from app.ledger.tables import ForgetRequestRow, ObligationRow
from app.ledger.views import request_views
from app.ledger.views.request_views import RequestView
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database.queries import database_time

Kind = Literal["request", "model", "dataset"]
MOST_ENTRIES: Final = 500
MOST_REQUESTS: Final = 1000
_OF_DERIVATIVES: Final = ("name", "told_at", "acknowledged_at", "answer")
TRUST: Final = (
    "Certificates and entries of the log are checked by expunge verify. What is said in this case "
    "is the service's word, from its records, and signed by it. Receipts and audits came from "
    "the one who asked for this dossier: the service signed only their digests. What is signed, in "
    "statement.json and in certificates, is the field payload: JSON, written as base64."
)

PROOFS: Final = {
    **dict.fromkeys(
        ("dates", "extension", "refusal", "corrections"), "statement.json: predicate.requests; log/"
    ),
    "erased": "statement.json: predicate.requests[].completed_at; log/",
    "open": "statement.json: predicate.open",
    "models": "statement.json: predicate.models; certificates/: predicate.model, forgotten",
    "recipients": "statement.json: predicate.models[].copies, derivatives",
    "guarantee": "certificates/: predicate.guarantee, forgotten",
    "mechanism": "certificates/: predicate.mechanism",
    "files": "statement.json: subject",
    "destroyed": "statement.json: predicate.destruction; log/: dataset.destroyed",
}
"""Which file and field of a dossier show each fact that the page of questions names."""


def collect(
    session: Session,
    kind: Kind,
    name: str,
    *,
    given: Mapping[str, str],
    signer: StatementSigner,
    witnesses: Sequence[WitnessKey] = (),
) -> tuple[dict[str, str], str]:
    """Return a dossier's files, but those ``given`` by their digests, and the signed envelope.

    The signer's key is the one in use.

    Raises:
        NotFoundError: there is no such request, model or dataset.
        InvalidInputError: receipts are given, and it is not about a request.
    """
    if kind != "request" and any(path.startswith("receipts/") for path in given):
        raise InvalidInputError("given: a receipt belongs to the dossier of its request")
    views, models, subjects = _case(session, kind, name)
    files, stated, of_request = {}, {}, name if kind == "request" else None
    for model in models:
        certificate = issuing.last_certificate(session, model.id)
        if of_request is not None:
            wanted = {o.model: o.certificate for o in views[0].obligations}.get(model.name)
            certificate = None if wanted is None else issuing.certificate(session, wanted)
        if certificate is not None:
            bundle = bundles.bundle_of(
                session, certificate, signer=signer, witnesses=witnesses, request_id=of_request
            )
            files[f"certificates/{model.name}.json"] = json.dumps(bundle, indent=1)
            stated[model.name] = statement_of(certificate.envelope)["predicate"]
    gone = asdict(destruction.preview(session, name)) if kind == "dataset" else {}
    facts: dict[str, Any] = {
        "kind": kind,
        "name": name,
        "made_at": database_time(session).isoformat(),
        "requests": [
            {name: told for name, told in asdict(view).items() if name not in request_views.UNTOLD}
            for view in views
        ],
        "models": [
            asdict(destruction.with_copies(session, model))
            | {
                "derivatives": [
                    {"version": number} | {what: getattr(row, what) for what in _OF_DERIVATIVES}
                    for row, number in derivatives.of_model(session, model.id)
                ]
            }
            for model in models
        ],
        # The entry is in log/, with its proof.
        "destruction": {what: gone[what] for what in gone if what != "statement"} or None,
        "given": sorted(given),
        "trust": TRUST,
    }
    facts["open"] = _open(session, facts, models)
    history = []
    signed = checkpoints.signed_size(session)
    for row in _entries(session, subjects):
        if row.index >= signed:
            facts["open"].append("newer entries of the log are not signed yet: make it again")
            break
        body = json.loads(row.body)
        what = re.sub(r"[._]", " ", row.kind)
        history.append(
            f"{_at(body['recorded_at'])}  {what}, by {body['by']} (log/{row.index}.json)"
        )
        proof = bundles.log_proof(session, row.index, row.body, witnesses=witnesses)
        files[f"log/{row.index}.json"] = json.dumps(proof.to_json(), indent=1)
    files["history.txt"] = "\n".join([*history, ""])
    title = f"Dossier of {kind} {name}"
    made = f"Made on {_at(facts['made_at'])}. Open: {'; '.join(facts['open']) or 'nothing'}."
    answers = _answers(facts, stated, sorted([*files, *given, "answers.html"]))
    files["answers.html"] = answers_html(title, answers, made=made, trust=TRUST)
    digests = digests_of({path: each.encode() for path, each in files.items()})
    plain = json.loads(json.dumps(facts, default=datetime.isoformat))
    return files, signer.sign(statement_about({**digests, **given}, plain)).envelope


def _case(
    session: Session, kind: Kind, name: str
) -> tuple[list[RequestView], list[ModelRow], set[str]]:
    """Return the requests and models of a case, and the ids by which the log speaks of it.

    The requests about a model or a dataset are those that it has still to meet.
    """
    request = ForgetRequestRow
    if kind == "request":
        views = [request_views.one(session, name)]
        owed = select(ObligationRow.model_id).where(ObligationRow.request_id == name)
        models = _models(session, session.scalars(owed).all())
        subjects = {name, *(o.certificate for o in views[0].obligations if o.certificate)}
    elif kind == "model":
        models = [registry.model_named(session, name)]
        waiting = select(ObligationRow.request_id).where(
            ObligationRow.model_id == models[0].id,
            ObligationRow.state.not_in((ObligationState.CERTIFIED, ObligationState.CANCELLED)),
        )
        views = request_views.most_urgent(session, request.id.in_(waiting), limit=MOST_REQUESTS)
        subjects = _ids_of(session, models[0])
    else:
        dataset = datasets.dataset_named(session, name)
        mine = select(ModelRow.id).where(ModelRow.dataset_id == dataset.id)
        models = _models(session, session.scalars(mine).all())
        is_open = (request.dataset_id == dataset.id) & request.completed_at.is_(None)
        views = request_views.most_urgent(session, is_open, limit=MOST_REQUESTS)
        subjects = {dataset.id}
    return views, models, subjects


def _models(session: Session, ids: Sequence[str]) -> list[ModelRow]:
    query = select(ModelRow).where(ModelRow.id.in_(ids), ModelRow.deleted_at.is_(None))
    return list(session.scalars(query.order_by(ModelRow.name)))


def _ids_of(session: Session, model: ModelRow) -> set[str]:
    """Return the ids under which the log speaks of a model, its versions and its copies."""
    places = select(PlacementRow.id).where(PlacementRow.model_id == model.id)
    copies = select(CopyRow.id).join(PlacementRow).where(PlacementRow.model_id == model.id)
    versions = select(VersionRow.id).where(VersionRow.model_id == model.id)
    return {model.id, *(each for q in (places, copies, versions) for each in session.scalars(q))}


def _entries(session: Session, subjects: Iterable[str]) -> Sequence[LogEntryRow]:
    """Return the newest entries that name one of these ids, in order."""
    named = f'"({"|".join(map(re.escape, sorted(subjects)))})"'
    query = select(LogEntryRow).where(LogEntryRow.body.op("~")(named))
    newest = query.order_by(LogEntryRow.index.desc()).limit(MOST_ENTRIES)
    return sorted(session.scalars(newest), key=lambda row: row.index)


def _open(session: Session, facts: Mapping[str, Any], models: Sequence[ModelRow]) -> list[str]:
    found = [
        f"request {each['id']} is {each['state']}, due {_at(each['due_at'])}"
        for each in facts["requests"]
        if each["completed_at"] is None
    ]
    for model, shown in zip(models, facts["models"], strict=True):
        head = session.get(VersionRow, model.head_version_id) if model.head_version_id else None
        serves = head.number if head and head.state == VersionState.CERTIFIED else None
        found += [
            f"{model.name} v{copy['version']} may still be at {copy['target']}"
            for copy in shown["copies"]
            if copy["removed_at"] is None and copy["version"] != serves
        ]
        found += [
            f"{each['name']}, made of {model.name} v{each['version']}, was told and has not "
            "answered"
            for each in shown["derivatives"]
            if each["told_at"] and not each["acknowledged_at"]
        ]
    of_request = facts["kind"] == "request"
    if of_request and not any(path.startswith("receipts/") for path in facts["given"]):
        found.append("no receipt was given: no certificate was compared with a person's ids")
    if not any(path.startswith("audits/") for path in facts["given"]):
        found.append("no audit report was given")
    return found


def _answers(
    facts: Mapping[str, Any], stated: Mapping[str, Mapping[str, Any]], files: Sequence[str]
) -> dict[str, Answer]:
    """Return what is so in this case, by the names that the page of questions uses."""
    requests = facts["requests"]
    lines: dict[str, list[str]] = {
        "dates": [
            f"{r['id']}: {r['state']}; received {_at(r['received_at'])}, due {_at(r['due_at'])}, "
            f"completed {_at(r['completed_at'])}"
            for r in requests
        ],
        "extension": [r["extension_reason"] or "not extended" for r in requests],
        "refusal": [
            f"refused: {r['ground']} {r['explanation'] or ''}" if r["ground"] else "not refused"
            for r in requests
        ],
        "corrections": [f"{r['replacements']} records replaced" for r in requests],
        "erased": [f"{r['id']}: records erased {_at(r['completed_at'])}" for r in requests],
        "open": [*facts["open"]],
        "models": (
            [f"{o['model']}: {o['state']} ({o['basis']})" for o in requests[0]["obligations"]]
            if facts["kind"] == "request"
            else [m["name"] for m in facts["models"]]
        )
        or ["no model of this service"],
        "recipients": [
            f"{m['name']} v{c['version']} at {c['target']}: sent {_at(c['sent_at'])}, removed "
            f"{_at(c['removed_at'])}"
            for m in facts["models"]
            for c in m["copies"]
        ]
        + [
            f"{d['name']}, made of {m['name']} v{d['version']}: told {_at(d['told_at'])}, answered "
            f"{_at(d['acknowledged_at'])} {d['answer'] or ''}"
            for m in facts["models"]
            for d in m["derivatives"]
        ]
        or ["published nowhere by this service"],
        "guarantee": [
            f"{name} v{p['model']['version']}: {' '.join(guarantee_in_words(p)).replace('**', '')}"
            for name, p in stated.items()
        ],
        "mechanism": [
            f"{name} v{p['model']['version']}: {p.get('mechanism', {}).get('name', p['basis'])}"
            for name, p in stated.items()
        ],
        "files": [*files],
    }
    gone = facts["destruction"]
    if gone is not None:
        done = "complete" if gone["complete"] else "not complete"
        lines["destroyed"] = [f"{done}; {gone['records']} records left", *gone["beyond_reach"]]
    return {name: Answer("\n".join(said), PROOFS[name]) for name, said in lines.items() if said}


def _at(moment: datetime | str | None) -> str:
    if moment is None:
        return "not yet"
    when = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
