"""Commands over HTTP: forget requests."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Annotated

import typer

from app.cli.connection import service, show_answer
from app.cli.files import read_ids
from app.cli.options import argument, existing_file, option
from app.cli.output import conclude, fail, say, show
from app.cli.waiting import Wait, show_request
from app.client.answers import Json
from app.client.download import bundle_bytes
from app.domain.errors import InvalidInputError
from app.domain.states import Ground
from app.evidence.certificates.note import size_of

_REQUESTS = ("id", "state", "dataset", "records", "received_at", "due_at")
RequestId = Annotated[str, argument("REQUEST", "The request's id.")]


def forget(
    dataset_name: Annotated[
        str | None, argument("[DATASET]", "Its name; without it, everywhere --subject is known.")
    ] = None,
    *,
    record: Annotated[list[str] | None, option("A record_id; may be repeated.")] = None,
    subject: Annotated[list[str] | None, option("A subject_id; may be repeated.")] = None,
    records_from: Annotated[
        Path | None, option("File of record_ids, one a line; - is standard input.")
    ] = None,
    subjects_from: Annotated[
        Path | None, option("File of subject_ids, one a line; - is standard input.")
    ] = None,
    external_id: Annotated[str | None, option("Your own id for this request.")] = None,
    callback: Annotated[
        list[str] | None, option("A URL that receives every change; may be repeated.")
    ] = None,
    receipt: Annotated[
        Path | None,
        option(
            "New file for the receipt, for 'verify --receipt'; without DATASET, one for each "
            "dataset, whose name is added to the file's."
        ),
    ] = None,
    preview: Annotated[
        bool, option("Only say what it would reach and cost; nothing is forgotten.", "--preview")
    ] = False,
    replacement: Annotated[
        Path | None,
        existing_file(
            "File of corrected rows, a JSON object on each line: they take the place of what is "
            "forgotten, and join at each model's next training."
        ),
    ] = None,
    hold: Annotated[
        bool,
        option("Let a person accept or refuse it first; nothing is forgotten before.", "--hold"),
    ] = False,
    wait: Wait = False,
) -> None:
    """Ask every model trained on DATASET to forget records or subjects.

    Without DATASET, every dataset that knows the subjects gets a request, or none if one refuses.
    Once this returns, no new run reads those records, unless they are on --hold. The answer lists
    every affected model; each finishes with a certificate. Repeating an --external-id shows the
    existing request.
    """
    if preview and any((receipt, external_id is not None, callback, replacement, hold, wait)):
        raise typer.BadParameter("--preview makes no request: leave its other options out")
    if records_from is not None and records_from == subjects_from:
        raise typer.BadParameter("--records-from and --subjects-from name the same ids")
    with service() as client:
        records = [*(record or ()), *read_ids(records_from)]
        subjects = [*(subject or ()), *read_ids(subjects_from)]
        if not records and not subjects:
            raise InvalidInputError("name what to forget: --record, --subject or a file of ids")
        if preview:
            show(client.preview_forget(dataset_name, record_ids=records, subject_ids=subjects))
            return
        if dataset_name is None and receipt is not None and len(subjects) > 1:
            raise InvalidInputError("receipts of a request everywhere are of one --subject")
        with receipt_file(receipt if dataset_name else None) as file:
            request = client.forget(
                dataset_name,
                record_ids=records,
                subject_ids=subjects,
                external_id=external_id,
                status_callback_urls=callback or [],
                hold=hold,
                replacement=_rows(replacement),
            )
            try:
                if dataset_name is not None:
                    write_receipt(file, request, record_ids=records, subject_ids=subjects)
                elif receipt is not None:
                    for part in request["requests"]:
                        path = receipt.with_stem(f"{receipt.stem}-{part['dataset']}")
                        with receipt_file(path) as own:
                            write_receipt(own, part, record_ids=[], subject_ids=subjects)
            except (OSError, InvalidInputError):
                show(request)  # it holds the salt, which must not be lost
                fail("the request is accepted, but there is no receipt: keep its receipt_salt")
                raise
        show_request(client, request, wait=wait)


def certificates(
    request_id: RequestId,
    *,
    out: Annotated[Path, option("Output directory; created if missing.")] = Path(),
    since: Annotated[
        Path | None, option("An older checkpoint, for 'verify --consistent-with'.", exists=True)
    ] = None,
) -> None:
    """Download a forget request's certificates, for use with its receipt."""
    written = []
    with service() as client:
        size = None if since is None else size_of(since.read_bytes())
        out.mkdir(parents=True, exist_ok=True)
        for certificate in client.certificates_of(request_id, since=size):
            path = out / f"{request_id}-{certificate['model']}.certificate.json"
            path.write_bytes(bundle_bytes(certificate["bundle"]))
            say(str(path))
            written.append({"model": certificate["model"], "file": str(path)})
        if not written:
            fail(f"there is none yet, or none was owed: expunge status {request_id}")
    conclude(written)


def status(request_id: RequestId, *, wait: Wait = False) -> None:
    """Show a forget request; with --wait, its live epsilon until it has ended."""
    with service() as client:
        show_request(client, client.request(request_id), wait=wait)


def requests(
    *,
    state: Annotated[
        str | None,
        option(
            "Only this state: received, refused, accepted, unlearning, certified, completed, "
            "failed or cancelled."
        ),
    ] = None,
    model_name: Annotated[
        str | None, option("Only those with an obligation of this model.", "--model")
    ] = None,
    external_id: Annotated[
        str | None, option("Only those with this --external-id or ticket, whoever sent them.")
    ] = None,
) -> None:
    """List forget requests, newest first."""
    show_answer(
        lambda client: client.requests(state=state, model=model_name, external_id=external_id),
        _REQUESTS,
    )


def accept(request_id: RequestId) -> None:
    """Accept a request that was held: its records are forgotten from now on."""
    show_answer(lambda client: client.decide(request_id, "accept"))


def refuse(
    request_id: RequestId,
    *,
    ground: Annotated[
        Ground, option("The paragraph of GDPR Art. 17(3), or other, with an --explanation.")
    ],
    explanation: Annotated[str | None, option("What the person is told about it.")] = None,
) -> None:
    """Refuse a request that was held; nothing is forgotten for it."""
    show_answer(
        lambda client: client.decide(request_id, "refuse", ground=ground, explanation=explanation)
    )


def reopen(request_id: RequestId) -> None:
    """Let a refused request be decided on again; its deadline stays."""
    show_answer(lambda client: client.decide(request_id, "reopen"))


def extend(
    request_id: RequestId, *, reason: Annotated[str, option("What the person is told about it.")]
) -> None:
    """Extend a request's deadline by two months: once, before it has passed."""
    show_answer(lambda client: client.decide(request_id, "extend", reason=reason))


def retry(request_id: RequestId) -> None:
    """Retry a failed request."""
    show_answer(lambda client: client.retry(request_id))


def cancel(request_id: RequestId) -> None:
    """Cancel a request before any run has started on it; its records stay forgotten."""
    show_answer(lambda client: client.cancel(request_id))


def _rows(path: Path | None) -> list[Json]:
    lines = [] if path is None else path.read_bytes().splitlines()
    try:
        return [json.loads(line) for line in lines if line.strip()]
    except ValueError:  # it may quote a value
        raise InvalidInputError(f"{path} is not a JSON object on each line") from None


@contextmanager
def receipt_file(path: Path | None) -> Iterator[FileIO | None]:
    """Open a new file that only the user can read; if nothing is written, it is removed again.

    Raises:
        InvalidInputError: there is something in the file already, maybe the only receipt of another
            request.
        OSError: it cannot be written.
    """
    if path is None:
        yield None
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    with FileIO(path, "w", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
        if os.fstat(file.fileno()).st_size > 0:
            raise InvalidInputError(f"{path} exists: give another --receipt, or move that one away")
        try:
            yield file
        finally:
            if os.fstat(file.fileno()).st_size == 0 and path.is_file():
                path.unlink(missing_ok=True)


def write_receipt(
    file: FileIO | None, request: Json, *, record_ids: list[str], subject_ids: list[str]
) -> None:
    """Write the receipt of an accepted request, to the disk, if there is a file for it.

    Raises:
        OSError: it cannot be written in full; the file is empty.
    """
    if file is None:
        return
    document = {
        "request": request["id"],
        "receipt_salt": request["receipt_salt"],
        "records": request["records"],
        "record_ids": record_ids,
        "subject_ids": subject_ids,
    }
    rest = memoryview(json.dumps(document, indent=1).encode())
    try:
        while rest:
            rest = rest[file.write(rest) :]
        if file.seekable():  # a pipe has no disk
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            file.truncate(0)
        error.filename = file.name
        raise
