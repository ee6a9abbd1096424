"""The operator's file of trusted keys. What it says is kept, whatever the ledger says.

Verifiers are given this file, so the ledger alone must not be able to change it: only a rotation
does, and only by what the command itself has just done.
"""

from datetime import datetime

from app.domain.errors import ConfigurationError, VerificationError
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.trusted_keys import TrustedKeys, read_trusted_keys
from app.evidence.log import signing_keys
from app.runtime.database import Database
from app.runtime.locations import signing_key_file
from app.runtime.settings import Settings


def ensure_trusted_keys(settings: Settings, database: Database) -> TrustedKeys:
    """Return what the file says; without a file, write what the ledger says.

    Raises:
        ConfigurationError: the file cannot be read, or the signing key.
    """
    path = settings.trusted_keys_file
    if path.exists():
        try:
            return read_trusted_keys(path.read_bytes())
        except VerificationError as error:
            raise ConfigurationError(f"{path}: {error}") from error
    signer = StatementSigner.from_file(signing_key_file(settings))
    with database.transaction() as session:
        if signing_keys.may_sign(session, signer):  # else a rotation has to be finished
            signing_keys.require_in_use(session, signer)
    with database.transaction() as session:
        known = signing_keys.trusted(session)
    known.write(path)
    return known


def require_same(known: TrustedKeys, stored: TrustedKeys) -> None:
    """Check that the ledger and the file agree about every key.

    Raises:
        ConfigurationError: they do not; the message names the key and the field.
    """
    difference = known.difference(stored)
    if difference is not None:
        raise ConfigurationError(
            f"trusted-keys.json and the ledger differ: {difference}. The file was not changed. "
            "After a rotation that was interrupted, repeat 'expunge signing-key rotate' with the "
            "same options; after a restore, run 'expunge reconcile'. Otherwise someone has changed "
            "the ledger or the file: see 'expunge log fsck'"
        )


def require_rotated(
    known: TrustedKeys,
    stored: TrustedKeys,
    new: StatementSigner,
    *,
    compromised_since: datetime | None = None,
) -> None:
    """Check that the ledger differs from the file by one rotation at most, to a key of ours.

    Raises:
        ConfigurationError: it differs in something else.
    """
    at = next((key.valid_from for key in stored.keys if key.id == new.key_id), None)
    if at is not None and all(key.id != new.key_id for key in known.keys):
        known = known.rotated(new.public_key, at=at, compromised_since=compromised_since)
    require_same(known, stored)
