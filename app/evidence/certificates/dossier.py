"""A dossier: all evidence for one case, in one zip file that is verified offline.

    statement.json   an in-toto statement that the service signed: its subjects are all other files,
                     by digest, and its predicate is what the service's records say of the case
    certificates/    bundles, as ``verification`` checks them
    log/             entries of the log, each with its proof and a signed checkpoint
    history.txt, answers.html    the same facts in words
    receipts/, audits/           files of the one who asked for the dossier

So no file can be changed, added or left out. What each proves differs: certificates and the log are
checked here; the statement is the service's word; of receipts and audits the service signed only
the digests, and receipts are checked against the certificates. The zip has one form: packing
the files again gives the same bytes.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from securesystemslib.dsse import Envelope

from app.domain import strict_json
from app.domain.errors import VerificationError
from app.evidence.certificates.bundle import read_log_proof
from app.evidence.certificates.trusted_keys import TrustedKeys, read_trusted_keys
from app.evidence.certificates.verification import check_inclusion, check_signature, verify

MAX_BYTES: Final = 512 * 1024 * 1024
PREDICATE_TYPE: Final = "https://expunge.dev/dossier/v1"
STATEMENT: Final = "statement.json"
_CLOCK_SKEW: Final = timedelta(minutes=5)
_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, NotImplementedError)


def digests_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 digests of files, by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def statement_about(digests: Mapping[str, str], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the service signs: the files' SHA-256 digests by name, and the facts."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": PREDICATE_TYPE,
        "subject": [
            {"name": name, "digest": {"sha256": digests[name]}} for name in sorted(digests)
        ],
        "predicate": dict(facts),
    }


def contents(files: Mapping[str, str], envelope: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what the service gives for a dossier as files: its texts, and the signed envelope."""
    statement = {STATEMENT: json.dumps(envelope, indent=1, sort_keys=True)}
    return {name: text.encode() for name, text in {**files, **statement}.items()}


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return the one zip file of these files."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name)  # of 1980
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, files[name])
    return whole.getvalue()


def verify_dossier(
    content: bytes,
    *,
    trusted: bytes,
    now: datetime | None = None,
    report: Callable[[str, str], None] = lambda _name, _finding: None,
) -> dict[str, Any]:
    """Check a dossier, as of the moment at which it was made; return the facts that were signed.

    ``report`` is called with each passed step and its finding. The weights are not in a dossier.

    Raises:
        VerificationError: with the first step that failed.
    """
    now = now or datetime.now(UTC)
    files = _unpacked(content)
    report("archive", f"{len(files)} files, packed as they always are")
    keys = read_trusted_keys(trusted)
    facts, named, made_at = _signed(files.pop(STATEMENT, b""), keys, now)
    report("statement", f"signed by the service on {made_at:%Y-%m-%d %H:%M} UTC: its word")
    if named != digests_of(files):
        raise VerificationError("files", "one was changed, added or removed")
    report("files", "exactly those that were signed")
    bundles = [each for name, each in files.items() if name.startswith("certificates/")]
    receipts: list[bytes | None] = [
        each for name, each in files.items() if name.startswith("receipts/")
    ]
    for bundle in bundles:
        for receipt in (*receipts,) or (None,):
            verify(bundle=bundle, weights=None, trusted=trusted, receipt=receipt, now=made_at)
    report("proofs", f"{len(bundles)} certificates hold; their weights are not here")
    if receipts:
        report("receipts", f"{len(receipts)}, each covered by every certificate")
    entries = [each for name, each in files.items() if name.startswith("log/")]
    for entry in entries:
        try:
            proof = read_log_proof(strict_json.loads(entry))
        except _ERRORS as error:
            raise VerificationError("log", "not an entry with its proof") from error
        check_inclusion(proof, keys, made_at)
    report("log", f"{len(entries)} entries are in the signed log")
    return facts


def _signed(
    content: bytes, keys: TrustedKeys, now: datetime
) -> tuple[dict[str, Any], dict[str, str], datetime]:
    """Return what a trusted key has signed: the facts, the files' digests, and when."""
    try:
        envelope = Envelope.from_dict(strict_json.loads(content))
        as_signed = {STATEMENT: content} == contents({}, envelope.to_dict())
        if not as_signed or len(envelope.signatures) != 1:
            raise VerificationError("statement", "not in the form that was signed")
        signer = check_signature(envelope, keys)
        statement = strict_json.loads(envelope.payload)
        facts: dict[str, Any] = statement["predicate"]
        named = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
        made_at = datetime.fromisoformat(facts["made_at"])
        vouched = signer.vouches_for(made_at, now=now) and made_at <= now + _CLOCK_SKEW
        is_ours = statement["predicateType"] == PREDICATE_TYPE
    except _ERRORS as error:
        raise VerificationError("statement", "not the statement of a dossier") from error
    if not is_ours or not vouched:
        raise VerificationError("statement", "of another kind, or signed by a key not valid then")
    return facts, named, made_at


def _unpacked(content: bytes) -> dict[str, bytes]:
    if len(content) > MAX_BYTES:
        raise VerificationError("archive", f"larger than {MAX_BYTES} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            listed = archive.infolist()
            size = sum(each.file_size for each in listed)
            if size > len(content) or any(each.compress_type for each in listed):
                raise VerificationError("archive", "not packed as a dossier is")
            files = {each.filename: archive.read(each) for each in listed}
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, *_ERRORS) as error:
        raise VerificationError("archive", "not a zip file, or damaged") from error
    if pack(files) != content:
        raise VerificationError("archive", "not packed as a dossier is")
    return files
