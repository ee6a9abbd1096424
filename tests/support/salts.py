"""What opens a request's commitments."""

from app.ledger import repository
from app.services import Services


def salt_of(services: Services, request_id: str) -> bytes:
    """Return the salt of a request's receipt."""
    with services.database.transaction() as session:
        salt = services.forget_requests.receipt_salt(repository.request(session, request_id))
    assert salt is not None
    return salt
