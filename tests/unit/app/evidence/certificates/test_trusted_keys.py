"""A list of trusted keys says of each key once when it counts; any other is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.domain.errors import VerificationError
from app.evidence.certificates import trusted_keys
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.trusted_keys import read_trusted_keys
from tests.support.trust import trust

SIGNERS = [StatementSigner(Ed25519PrivateKey.from_private_bytes(b * 32)) for b in (b"a", b"b")]


def _twice(keys: list[dict[str, Any]]) -> None:
    """Say of one key both that it was stolen and that it was not."""
    keys.append(keys[0] | {"compromised_since": "2026-01-01T00:00:00+00:00"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_twice, "different keys"),
        (lambda keys: keys.clear(), "different keys"),
        (lambda keys: keys[0].update(purpose="another"), None),
        (lambda keys: [key.update(purpose="another") for key in keys], "different keys"),
        (lambda keys: keys[0].update(valid_from="2026-01-01T00:00:00"), "not a list"),
        (lambda keys: keys[0].update(valid_until="soon"), "not a list"),
        (lambda keys: keys[0].update(key_id=keys[1]["key_id"]), "does not match its id"),
        (lambda keys: keys[0].update(algorithm="none"), "does not match its id"),
        (lambda keys: keys[0].update(note="x"), "not a list"),
        (lambda keys: keys[0].pop("compromised_since"), "not a list"),
        (lambda _: None, None),
    ],
)
def test_a_list_that_contradicts_itself_is_refused(
    change: Callable[[list[dict[str, Any]]], object], reason: str | None
) -> None:
    document = json.loads(trust(*SIGNERS))
    change(document["keys"])
    content = json.dumps(document).encode()
    if reason is None:
        assert {key.id for key in read_trusted_keys(content).keys} <= {
            each["key_id"] for each in document["keys"]
        }
        return
    with pytest.raises(VerificationError, match=reason) as caught:
        read_trusted_keys(content)
    assert caught.value.step == "keys"


def test_a_list_is_no_longer_than_a_verifier_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    content = trust(*SIGNERS)
    monkeypatch.setattr(trusted_keys, "MAX_KEYS", 1)
    with pytest.raises(VerificationError, match="1 to 1 different keys"):
        read_trusted_keys(content)
    monkeypatch.setattr(trusted_keys, "MAX_BYTES", len(content) - 1)
    with pytest.raises(VerificationError, match="larger than"):
        read_trusted_keys(content)
