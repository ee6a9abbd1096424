"""``expunge audit``: attacks a copy of a model through the API; and the check of its report."""

import hashlib
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.commands.prediction import Base, Factories
from app.cli.commands.resources import trusted_keys
from app.cli.connection import service
from app.cli.options import Trusted, argument, existing_file, option
from app.cli.output import checked_steps, conclude, fail, say
from app.cli.waiting import INTERRUPTED, run_progress
from app.client import ApiError
from app.domain.extras import TABLES, TORCH, loaded
from app.evidence.certificates.signing import StatementSigner, public_pem
from app.evidence.certificates.trusted_keys import ed25519_of

_REPORT, _PAGE, _PUBLIC = "audit.json", "audit.html", "auditor.pem"


def audit(
    model_name: Annotated[str, argument("MODEL", "The model to audit; it is only read.")],
    *,
    canaries: Annotated[int, option("How many pairs of contents.", min=1)] = 200,
    confidence: Annotated[float, option("Of the bound and the verdict.")] = 0.95,
    guesses: Annotated[
        int | None,
        option("How many coins to guess, fixed before any score; by default half of them.", min=1),
    ] = None,
    data: Annotated[
        Path | None,
        option(
            "A table of your own with the columns that the model reads; without it, rows are made "
            "up.",
            exists=True,
        ),
    ] = None,
    out: Annotated[Path, option("Directory of report and release; made if missing.")] = Path(
        "audit"
    ),
    key: Annotated[
        Path, option("Your private key in PEM, which signs the report; made if missing.")
    ] = Path("auditor-key.pem"),
    name: Annotated[
        str | None, option("What to call the copy and its dataset; by default audit-….")
    ] = None,
    trusted: Trusted = None,
    factory: Factories = None,
    base: Base = None,
) -> None:
    """Attack a certificate: have a copy of MODEL learn canaries, forget them, and look for traces.

    The copy has the model's definition and a dataset of its own. Of each canary, a coin chooses one
    of two contents; the coins never reach the service. From the release that is certified to have
    forgotten all canaries they are guessed back. If the same attacks do not find them in the
    release before, the audit is inconclusive. All that was made is archived in the end. Exits with
    1 if the certificate is contradicted.
    """
    auditing: Any = loaded("workers.audit.auditing", extra=TORCH)
    page: Any = loaded("workers.audit.page", extra=TORCH)
    reading: Any = loaded("app.registry.datasets.columns.reading", extra=TABLES)
    rows = None if data is None else reading.read_source(data).whole()
    signer = StatementSigner.from_file(key, create=True)

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    # What was made is archived then, too; what is ignored, as under nohup, stays so.
    usual = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in usual:
        signal.signal(number, stop)
    with service() as client, run_progress() as update:

        def tell(what: str, run: Mapping[str, Any] | None) -> None:
            update(run, what)

        try:
            report = auditing.Audit(
                client=client,
                model=model_name,
                rows=rows,
                trusted=trusted_keys(trusted).read_bytes(),
                directory=out,
                name=name or f"audit-{secrets.token_hex(4)}",
                canaries=canaries,
                guesses=guesses or max(1, canaries // 2),
                confidence=confidence,
                factories=factory or (),
                base=base,
                tell=tell,
            ).run()
        except KeyboardInterrupt as error:
            fail("interrupted; what the audit had made was archived")
            raise typer.Exit(INTERRUPTED) from error
        finally:
            for number in usual:
                signal.signal(number, signal.SIG_DFL)
    files = {
        _REPORT: report.signed(signer),
        _PAGE: page.page(report),
        _PUBLIC: public_pem(signer.public_key),
    }
    for file, content in files.items():
        (out / file).write_text(content, encoding="utf-8")
    _log(model_name, files[_REPORT], report.predicate["result"]["verdict"])
    for line in report.in_words():
        say(line)
    say(f"\nreport: {out / _REPORT}, signed; as a page: {out / _PAGE}; your key: {out / _PUBLIC}")
    conclude({"report": str(out / _REPORT), **report.predicate["result"]})
    if report.contradicts:
        raise typer.Exit(1)


def _log(model_name: str, report: str, verdict: str) -> None:
    """Have the report's digest and verdict written to the service's log, if the key may."""
    digest = hashlib.sha256(report.encode()).hexdigest()
    try:
        with service() as client:
            client.report_audit(model_name, report_sha256=digest, verdict=verdict)
    except ApiError as error:
        say(f"The report is not in the service's log: {error}\n")


def verify_audit(
    report: Annotated[
        Path, argument("REPORT", "The audit.json of an audit.", exists=True, dir_okay=False)
    ],
    *,
    key: Annotated[
        Path,
        existing_file("The auditor's public key in PEM, from another channel than the report."),
    ],
    weights: Annotated[
        Path | None, existing_file("The release that the report should be about.")
    ] = None,
    certificate: Annotated[Path | None, existing_file("That release's certificate.")] = None,
) -> None:
    """Check the report of an audit offline, and count again what follows from its scores.

    Exits with 1 if the report does not hold; the verdict of one that does may be either.
    """
    reports: Any = loaded("workers.audit.report", extra=TORCH)
    with checked_steps(11) as (steps, tell):
        pem = key.read_text(encoding="utf-8", errors="replace")
        found = reports.verify(
            report.read_bytes(),
            ed25519_of(pem),
            weights=None if weights is None else weights.read_bytes(),
            certificate=None if certificate is None else certificate.read_bytes(),
            report=tell,
        )
    say("")
    for line in (*found.in_words(), *found.predicate["cannot_show"]):
        say(line)
    conclude({"holds": True, "steps": steps, **found.predicate["result"]})
