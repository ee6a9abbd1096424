"""What is fuzzed: each target reads bytes and may refuse them, with its own error and no other."""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
import safetensors.torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from app.api.models import ModelBody
from app.api.plans import PlansBody
from app.domain.architectures import ArchitectureSpec
from app.domain.errors import (
    InvalidInputError,
    InvalidRecordsError,
    NoteError,
    ParameterError,
    PayloadTooLargeError,
    PlanError,
    VerificationError,
)
from app.domain.recipes import TrainingRecipe
from app.evidence.certificates.bundle import read_bundle
from app.evidence.certificates.note import size_of
from app.evidence.certificates.receipts import Receipt
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.trusted_keys import read_trusted_keys
from app.evidence.certificates.verification import verify
from app.ledger.models.definitions import check_weights
from tests.support.arrays import array_schema
from tests.support.bundles import signed_payload
from tests.support.trust import trust
from tests.support.uploads import parse_upload
from tests.support.workshop import TASK, records_parquet

SLOWEST_S = 5.0
_GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
_WEIGHTS = _GOLDEN / "gradient_clipping.safetensors"
# Those whose network has the same tensors as these weights, of second versions.
_OF_ONE_SHAPE = (
    "gradient_clipping",
    "model_clipping",
    "output_perturbation",
    "retraining",
)
_KEYS = (_GOLDEN / "trusted-keys.json").read_bytes()
_SCHEMA = array_schema(2)
_SIGNER = StatementSigner(Ed25519PrivateKey.generate())
_TRUST = trust(_SIGNER)


@dataclass(frozen=True)
class Target:
    """A reader of strangers' bytes.

    Attributes:
        read: takes any bytes, and raises one of the refusals or nothing.
        refusals: what it may raise.
        seeds: inputs that are read to the end, from which the search starts.
    """

    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    seeds: list[bytes]

    def __call__(self, content: bytes) -> None:
        """Read, or be refused, and in time: the process's own, whatever else the machine does."""
        started = time.process_time()
        with suppress(*self.refusals):
            self.read(content)
        assert time.process_time() - started < SLOWEST_S


def _parquet(content: bytes) -> None:
    parse_upload(content, _SCHEMA)


def _weights(content: bytes) -> None:
    """What passes the check must be readable for a worker."""
    check_weights(content)
    try:
        safetensors.torch.load(content)
    except Exception as error:
        raise AssertionError("these weights should have been refused") from error


def _bundle(content: bytes) -> None:
    verify(bundle=content, weights=_WEIGHTS, trusted=_KEYS)


def _signed_statement(payload: bytes) -> None:
    bundle = json.dumps(signed_payload(payload, _SIGNER)).encode()
    verify(bundle=bundle, weights=_WEIGHTS, trusted=_TRUST)


def _receipt(content: bytes) -> None:
    receipt = Receipt.from_json(content)
    receipt.find(set())


def _model(content: bytes) -> None:
    body = ModelBody.model_validate_json(content)
    body.policy.to_policy()
    ArchitectureSpec.from_json(body.architecture)
    TrainingRecipe.from_json(body.recipe.model_dump(exclude_unset=True))


def _plan(content: bytes) -> None:
    PlansBody.model_validate_json(content).policy.to_policy()


def _defect(content: bytes) -> None:
    """Read as something careless would, to see that the search finds it."""
    if content.startswith(b"ab"):
        raise IndexError("planted")


def _statements() -> list[bytes]:
    """The golden statements, each about the same weights."""
    digest = {"sha256": hashlib.sha256(_WEIGHTS.read_bytes()).hexdigest()}
    paths = [_GOLDEN / f"{case}.certificate.json" for case in _OF_ONE_SHAPE]
    statements = [json.loads(read_bundle(path.read_bytes()).envelope.payload) for path in paths]
    for statement in statements:
        statement["subject"][0]["digest"] = digest
        statement["predicate"]["model"] = statements[0]["predicate"]["model"]
    return [json.dumps(statement).encode() for statement in statements]


def _golden(name: str) -> list[bytes]:
    return [(_GOLDEN / name).read_bytes()]


def _json(document: object) -> list[bytes]:
    return [json.dumps(document).encode()]


_BODY_REFUSALS = (ValidationError, InvalidInputError, ParameterError, PlanError)
_POLICY = {"epsilon": 1.5, "mechanism": "gradient_clipping", "parameters": {"noise_std": [3.0]}}
_MODEL = {
    "name": "m",
    "dataset": "digits",
    "task": TASK,
    "architecture": {"name": "mlp", "options": {"hidden": [16]}},
    "recipe": {"epochs": 2, "batch_size": 64, "held_out_fraction": 0.2},
    "policy": _POLICY,
}
_PLANS = {"policy": _POLICY, "model": "m"}
_TENSORS = {"weight": np.ones((2, 2), np.float32)}

TARGETS = {
    "parquet": Target(
        _parquet,
        (InvalidRecordsError, PayloadTooLargeError),  # its metadata may announce any size
        [records_parquet(40, first=1000)],
    ),
    "weights": Target(_weights, (InvalidInputError,), [safetensors.numpy.save(_TENSORS)]),
    "bundle": Target(_bundle, (VerificationError,), _golden("gradient_clipping.certificate.json")),
    "statement": Target(_signed_statement, (VerificationError,), _statements()),
    "receipt": Target(_receipt, (VerificationError,), _golden("receipt.json")),
    "keys": Target(read_trusted_keys, (VerificationError,), _golden("trusted-keys.json")),
    "checkpoint": Target(size_of, (NoteError,), _golden("checkpoint.txt")),
    "model": Target(_model, _BODY_REFUSALS, _json(_MODEL)),
    "plans": Target(_plan, _BODY_REFUSALS, _json(_PLANS)),
    "planted": Target(_defect, (), [b"a"]),
}
