"""Requests about people without a dataset: one forget request in each that knows them."""

from dataclasses import replace

from sqlalchemy.orm import Session

from app.access.pseudonyms import Pseudonyms
from app.domain.errors import InvalidInputError, UnknownRecordsError
from app.ledger import repository
from app.ledger.new_requests import (
    MAX_REPORTED_UNKNOWN,
    DedupKeys,
    NewForgetRequest,
    known_subjects,
)
from app.registry.datasets import repository as datasets


def named_in(name: str, dataset: str) -> str:
    """Return what a request everywhere calls its part in a dataset, by the caller's own name."""
    return f"{name}/{dataset}"


def external_keys(session: Session, pseudonyms: Pseudonyms, external_id: str) -> list[bytes]:
    """Return what is stored of a caller's own id: of a request, or of its parts in datasets."""
    names = [named_in(external_id, each.name) for each in datasets.datasets(session)]
    return [pseudonyms.external_id(name) for name in (external_id, *names)]


def parts_of(
    session: Session, request: NewForgetRequest, pseudonyms: Pseudonyms, *, api_key_id: str
) -> list[NewForgetRequest]:
    """Return a request's parts, in the order in which datasets are locked; the first ones again.

    Raises:
        UnknownRecordsError: people whom no dataset knows.
        InvalidInputError: records are named, or nobody.
    """
    if request.record_ids or not request.subject_ids:
        raise InvalidInputError("without a dataset, name subject_ids; record_ids have one dataset")
    known, parts, earlier = set[str](), [], []
    for dataset in sorted(datasets.datasets(session), key=lambda each: each.name):
        found = known_subjects(session, dataset.id, request.subject_ids, pseudonyms)
        if not found or dataset.public:
            continue
        names = (request.external_id, request.idempotency_key)
        external_id, key = (name and named_in(name, dataset.name) for name in names)
        part = replace(
            request,
            dataset=dataset.name,
            subject_ids=found,
            everywhere=request.subject_ids,
            external_id=external_id,
            idempotency_key=key,
        )
        known.update(found)
        parts.append(part)
        keys = DedupKeys.of(part, dataset.id, pseudonyms).names(api_key_id)
        earlier += [part] if repository.earlier_requests(session, keys) else []
    unknown = [each for each in request.subject_ids if each not in known]
    if unknown and not earlier:
        raise UnknownRecordsError(len(unknown), unknown[:MAX_REPORTED_UNKNOWN])
    return earlier or parts
