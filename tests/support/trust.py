"""What verifiers trust, in tests."""

from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.trusted_keys import TrustedKey, TrustedKeys
from app.evidence.log import signing_keys
from app.services import Services
from tests.support.bundles import ORIGIN


def trust(*signers: StatementSigner, origin: str = ORIGIN) -> bytes:
    """Return a list of keys that are all in use."""
    keys = tuple(TrustedKey(signer.public_key) for signer in signers)
    return TrustedKeys(origin, keys).to_bytes()


def trust_in(services: Services) -> bytes:
    """Return the list that a service publishes."""
    with services.database.transaction() as session:
        return signing_keys.trusted(session).to_bytes()
