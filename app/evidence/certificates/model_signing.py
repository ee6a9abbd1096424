"""Signatures of weight files for the tools of OpenSSF Model Signing v1.

A Sigstore bundle around a DSSE envelope around an in-toto statement, as ``model-signing`` 1.x
creates it with a user's own key. It proves who released a file and that it is unchanged. The
certificate, not this signature, states what was forgotten.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from securesystemslib.dsse import Envelope

from app.domain.errors import ConfigurationError
from app.evidence.certificates.schema import STATEMENT_TYPE
from app.evidence.certificates.signing import PAYLOAD_TYPE, load_private_key, public_pem

SIGNATURE_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
ALGORITHM = "ecdsa-p256-sha256"
_PREDICATE_TYPE = "https://model_signing/signature/v1.0"
_THE_FILE_ITSELF = "."


class ModelSigner:
    """Holds the P-256 key that signs weight files."""

    def __init__(self, private_key: EllipticCurvePrivateKey) -> None:
        self._private_key = private_key

    @classmethod
    def from_file(cls, path: Path, *, create: bool = False) -> "ModelSigner":
        """Read or make the key, a P-256 one, as ``load_private_key`` does."""
        key = load_private_key(path, lambda: generate_private_key(SECP256R1()), create=create)
        if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
            raise ConfigurationError(f"{path} is not a P-256 key")
        return cls(key)

    @property
    def key_id(self) -> str:
        """SHA-256 of the public key's PEM text, in hex; the bundle's hint."""
        return hashlib.sha256(self.public_key_pem.encode()).hexdigest()

    @property
    def public_key_pem(self) -> str:
        """The public key, for verifiers."""
        return public_pem(self._private_key.public_key())

    def sign(self, *, name: str, sha256: str) -> dict[str, Any]:
        """Return the bundle that signs one file; deterministic. Verifiers accept any name."""
        # The manifest of a model that is one file: the root digest is over its digest.
        root = hashlib.sha256(bytes.fromhex(sha256)).hexdigest()
        file = {"name": _THE_FILE_ITSELF, "algorithm": "sha256", "digest": sha256}
        statement = {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {"sha256": root}}],
            "predicateType": _PREDICATE_TYPE,
            "predicate": {
                "serialization": {
                    "method": "files",
                    "hash_type": "sha256",
                    "allow_symlinks": False,
                },
                "resources": [file],
            },
        }
        payload = json.dumps(statement, separators=(",", ":")).encode()
        encoding = Envelope(payload, PAYLOAD_TYPE, {}).pae()
        signature = self._private_key.sign(encoding, ECDSA(SHA256(), deterministic_signing=True))
        return {
            "mediaType": SIGNATURE_MEDIA_TYPE,
            "verificationMaterial": {"publicKey": {"hint": self.key_id}, "tlogEntries": []},
            "dsseEnvelope": {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
            },
        }
