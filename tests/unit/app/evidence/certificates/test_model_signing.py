"""The OpenSSF tool, not ours, says whether our signatures are good."""

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import model_signing
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from app.domain.errors import ConfigurationError
from app.evidence.certificates.model_signing import ModelSigner
from app.evidence.certificates.signing import StatementSigner
from app.runtime.keyfiles import create_key_file
from tests.support.patience import PATIENCE_S

CONTENT = b"weights" * 1000
NAME = "model-v3.safetensors"


@pytest.fixture
def signer(tmp_path: Path) -> ModelSigner:
    return ModelSigner.from_file(tmp_path / "keys" / "p256.pem", create=True)


@pytest.fixture
def files(signer: ModelSigner, tmp_path: Path) -> dict[str, Path]:
    files = {name: tmp_path / name for name in (NAME, "model.sig", "key.pub")}
    files[NAME].write_bytes(CONTENT)
    bundle = signer.sign(name=NAME, sha256=hashlib.sha256(CONTENT).hexdigest())
    files["model.sig"].write_text(json.dumps(bundle))
    files["key.pub"].write_text(signer.public_key_pem)
    return files


def _verify(files: dict[str, Path]) -> None:
    verifier = model_signing.verifying.Config()
    verifier.use_elliptic_key_verifier(public_key=files["key.pub"])
    verifier.verify(files[NAME], files["model.sig"])


def test_the_reference_implementation_accepts_the_signature(files: dict[str, Path]) -> None:
    _verify(files)


def test_its_command_line_accepts_it_too(files: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(files[NAME])]
    options = ["--signature", str(files["model.sig"]), "--public_key", str(files["key.pub"])]
    subprocess.run([*command, *options], check=True, timeout=PATIENCE_S)


def test_it_refuses_other_weights_another_key_and_any_changed_digest(
    files: dict[str, Path], tmp_path: Path
) -> None:
    honest = {name: path.read_bytes() for name, path in files.items()}
    stranger = ModelSigner.from_file(tmp_path / "stranger.pem", create=True)
    other = hashlib.sha256(b"other").hexdigest()
    bundle = json.loads(honest["model.sig"])
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(
        payload.replace(hashlib.sha256(CONTENT).hexdigest().encode(), other.encode())
    ).decode()
    changes = {
        NAME: CONTENT[:-1] + b"?",
        "key.pub": stranger.public_key_pem.encode(),
        "model.sig": json.dumps(bundle).encode(),
    }
    for name, changed in changes.items():
        files[name].write_bytes(changed)
        with pytest.raises(Exception, match=r"mismatch|Mismatch|^$"):
            _verify(files)
        files[name].write_bytes(honest[name])
    _verify(files)


def test_our_bundle_has_the_shape_of_theirs(files: dict[str, Path], tmp_path: Path) -> None:
    """Made by both from the same key and file, only the signature and spaces may differ."""
    signing = model_signing.signing.Config()
    signing.use_elliptic_key_signer(private_key=tmp_path / "keys" / "p256.pem")
    signing.sign(files[NAME], tmp_path / "theirs.sig")
    theirs = json.loads((tmp_path / "theirs.sig").read_text())
    ours = json.loads(files["model.sig"].read_text())

    statements = [
        json.loads(base64.b64decode(bundle["dsseEnvelope"].pop("payload")))
        for bundle in (ours, theirs)
    ]
    for statement in statements:
        # What their command line leaves out of directories does not concern a single file.
        statement["predicate"]["serialization"].pop("ignore_paths", None)
    assert statements[0] == statements[1]
    for bundle in (ours, theirs):
        (signature,) = bundle["dsseEnvelope"]["signatures"]
        assert signature.pop("sig")
        assert not signature.pop("keyid", "")
        bundle["verificationMaterial"].pop("tlogEntries", None)
    assert ours == theirs


def test_signing_twice_gives_the_same_bytes(signer: ModelSigner) -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    assert signer.sign(name="a", sha256=digest) == signer.sign(name="a", sha256=digest)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    StatementSigner.from_file(tmp_path / "ed25519.pem", create=True)
    other_curve = generate_private_key(SECP384R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    create_key_file(tmp_path / "p384.pem", lambda: other_curve)
    for name in ("ed25519.pem", "p384.pem"):
        with pytest.raises(ConfigurationError, match="not a P-256 key"):
            ModelSigner.from_file(tmp_path / name)
