"""Statements of every kind with weights that they are true of, made without a service."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from app.domain.architectures import (
    ArchitectureSpec,
    BackboneDigest,
    BaseDigest,
    Member,
    definition_digest,
)
from app.domain.description import ModelDescription
from app.domain.merkle import EMPTY_ROOT
from app.domain.plan import Plan
from app.domain.schema import InputSchema
from app.domain.states import Basis
from app.evidence.certificates.parameters import draws_of, grid_of
from app.evidence.certificates.schema import (
    SECURE_NOISE,
    Backbone,
    Excluded,
    Forgotten,
    NoiseSection,
    Tree,
)
from app.evidence.certificates.statement import (
    CertifyingPhase,
    Subject,
    Times,
    as_trained_statement,
    exclusion_statement,
    restated,
    unlearning_statement,
)
from app.evidence.certificates.weights_file import WeightsFile
from app.planning.mechanisms.catalogue import MECHANISMS, mechanism_named
from app.planning.mechanisms.mechanism import Deterministic, Needs
from tests.support.mechanisms import CASES, CLIPPED, COVERING, FORGOTTEN, RELEASED, SOLVED
from tests.support.specs import classification

Document = dict[str, Any]
GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMES = Times(started_at=NOW, certified_at=NOW + timedelta(seconds=9))
EVALUATION = {
    "held_out_records": 40,
    "held_out_loss": 0.31,
    "metrics": {"accuracy": 0.9},
    "headline": "accuracy",
}
CURVE = EVALUATION | {
    "noise_curve": [
        {"noise_std": 0.05, "score": 0.9},
        {"noise_std": 0.1, "score": 0.8},
    ]
}
PUBLIC = BackboneDigest(name="public", sha256="5a" * 32, definition="6a" * 32, frozen=False)
FROZEN = BackboneDigest(
    name="features",
    sha256="5b" * 32,
    definition=definition_digest(
        architecture={"name": "logistic", "options": {}}, layers=(), input_shape=(8, 8), classes=3
    ),
    frozen=True,
)
BASE = BaseDigest(sha256="5e" * 32, tensors=("0.bias", "0.mask", "0.weight"))
DESCRIPTION = ModelDescription(
    model="model",
    version=2,
    architecture=ArchitectureSpec("custom", factory="networks:adapted"),
    task=classification(2, InputSchema(shape=(3,), classes=2)),
)
NETWORK = {"1.bias": (2,), "1.weight": (2, 3)}
HEAD = {"weight": (3, 4)}
RIDGE_HEAD = {"bias": (3,), "weight": (3, 4)}
TREES = dict.fromkeys(("column", "left", "threshold", "value"), (3, 20, 15)) | {"baseline": (3,)}
ARITHMETIC = "float64 in one thread: openblas 0.3.30 Haswell"


@dataclass(frozen=True)
class Case:
    """A statement and the weights that it is about."""

    statement: Document
    weights: bytes

    @property
    def payload(self) -> bytes:
        """What is signed."""
        return json.dumps(self.statement).encode()


@cache
def cases() -> Mapping[str, Case]:
    """Return a case of each mechanism and basis: golden ones, and what no run happened to make."""
    golden = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.certificate.json"))
    made = {f"{name}, made": case for name, case in synthetic().items()}
    return {name: _golden(name) for name in golden} | made


@cache
def synthetic() -> Mapping[str, Case]:
    """Return a case of each mechanism and basis."""
    plain_cases = {name: case_of(name) for name in MECHANISMS}
    clipped = plain_cases["gradient_clipping"]
    based = network_case("gradient_clipping", CLIPPED, base=BASE)
    return plain_cases | {
        "gradient_clipping_base": based,
        "gradient_clipping_public": network_case("gradient_clipping", CLIPPED, backbone=PUBLIC),
        "sufficient_statistics_of_numbers": exact_case(
            "sufficient_statistics", SOLVED | {"target_range": 4.0}, RIDGE_HEAD
        ),
        "sharded_retraining_base": ensemble_case(base=BASE),
        "left_out": ensemble_case(out={2: 2}, base=BASE),
        "tracked_release_frozen": head_case("tracked_release", RELEASED, backbone=FROZEN),
        "tracked_release_covering": head_case("tracked_release", COVERING, evaluation=CURVE),
        "exclusion": Case(exclusion(), clipped.weights),
        "trained_anew": Case(exclusion(trained_anew=True), clipped.weights),
        "exclusion_base": Case(exclusion(base=BASE), based.weights),
        "as_trained": Case(as_trained(clipped.weights), clipped.weights),
        "as_trained_again": Case(as_trained(clipped.weights, version=3), clipped.weights),
        "restated": Case(again(clipped.statement), clipped.weights),
    }


def case_of(mechanism: str) -> Case:
    """Return a case of a mechanism with the parameters that it has for all tests."""
    case, kind = CASES[mechanism], mechanism_named(mechanism)
    if kind.needs is Needs.ENSEMBLE:
        return ensemble_case()
    if issubclass(kind, Deterministic):
        shapes = {Needs.RIDGE_HEAD: RIDGE_HEAD, Needs.BOOSTED_TREES: TREES}.get(kind.needs, HEAD)
        return exact_case(mechanism, case.parameters, shapes)
    of_network = kind.needs is Needs.ANY_NETWORK
    made = network_case if of_network else head_case
    return made(mechanism, case.parameters, epsilon=case.meets)


def coverage(*, records: int = FORGOTTEN, requests: int = 1, excluded: int = 2) -> Forgotten:
    """Return a coverage whose trees fit its counts: every request names every record."""
    return Forgotten(
        since_version=1,
        requests=requests,
        records=records,
        covered=tree("c0", requests * records),
        excluded_records=excluded,
        excluded=tree("e0", excluded),
        before_training=0,
    )


def tree(byte: str, size: int) -> Tree:
    """Return a tree of commitments of some size."""
    return Tree(size=size, root=byte * 32 if size else EMPTY_ROOT.hex())


def network_case(
    mechanism: str,
    parameters: Mapping[str, Any],
    *,
    epsilon: float = 1.0,
    backbone: BackboneDigest | None = None,
    base: BaseDigest | None = None,
) -> Case:
    """Return a case about a small network; its frame is that of an initialisation."""
    frame: Document | None = None
    if mechanism_named(mechanism).in_frame:
        scale = {"1.bias": 0.5, "1.weight": 0.175799}
        frame = {"centre": "initialisation_mean", "scale": scale}
        if backbone is not None:
            source = {"name": backbone.name, "sha256": backbone.sha256}
            frame |= {
                "centre": "public_weights",
                "public_tensors": list(scale),
                "public_source": source,
            }
    weights = weights_of(NETWORK, np.float32, base=base)
    return _unlearned(
        mechanism, parameters, weights, frame=frame, epsilon=epsilon, backbone=backbone, base=base
    )


def ensemble_case(
    *,
    base: BaseDigest | None = None,
    out: Mapping[int, int] = {},
    of: ModelDescription = DESCRIPTION,
    shapes: Mapping[str, tuple[int, ...]] = NETWORK,
    dtype: type | str = np.float32,
    child: float = 0.0,
) -> Case:
    """Return a case about three members, one of them trained anew with the second version.

    ``out`` are left out, each since a version. Of another network than the described one the file
    describes itself.
    """
    architecture = ArchitectureSpec("ensemble", members=3, of=of.architecture)
    description = replace(of, architecture=architecture, out=out)
    active = (member for member in range(3) if member not in out)
    named = {f"members.{each}.{name}": shapes[name] for each in active for name in shapes}
    weights = weights_of(named, dtype, base=base, description=description, child=child)
    if of is not DESCRIPTION:
        tensors = safetensors.numpy.load(weights)
        weights = safetensors.numpy.save(tensors, metadata=description.to_metadata())
    digests = WeightsFile(BytesIO(weights)).digests_of_members()
    members = [
        Member(out_since=out[place]) if place in out else Member(digests[place], 1 + (place == 1))
        for place in range(3)
    ]
    return _unlearned(
        "sharded_retraining", {}, weights, epsilon=1.0, backbone=None, base=base, members=members
    )


def head_case(
    mechanism: str,
    parameters: Mapping[str, Any],
    *,
    epsilon: float = 1.0,
    backbone: BackboneDigest | None = None,
    evaluation: Mapping[str, Any] = EVALUATION,
) -> Case:
    """Return a case about a linear head of three classes, whose weights lie on its grid."""
    draws = draws_of(mechanism, parameters, basis=Basis.UNLEARNED)
    frozen = {"backbone.0.weight": (4, 4)} if backbone is not None else {}
    weights = weights_of(HEAD, np.float64, grid=grid_of(mechanism, draws), frozen=frozen)
    return _unlearned(
        mechanism, parameters, weights, epsilon=epsilon, backbone=backbone, evaluation=evaluation
    )


def exact_case(
    mechanism: str, parameters: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Case:
    """Return a case about a head of three classes that is a function of its records."""
    weights = weights_of(shapes, np.float64)
    return _unlearned(mechanism, parameters, weights, epsilon=1.0, backbone=None)


def weights_of(
    shapes: Mapping[str, tuple[int, ...]],
    dtype: type | str,
    *,
    grid: float | None = None,
    frozen: Mapping[str, tuple[int, ...]] = {},
    base: BaseDigest | None = None,
    description: ModelDescription = DESCRIPTION,
    child: float = 0.0,
) -> bytes:
    """Return a safetensors file of numbers between -1 and 1, rounded to a grid if there is one.

    Of trees all nodes are leaves, or have their left child at ``child``.

    Only a file of a network with a base describes itself.
    """
    random = np.random.default_rng(7)
    tensors = {name: random.uniform(-1, 1, shape) for name, shape in (shapes | frozen).items()}
    if grid is not None:
        tensors |= {name: np.rint(tensors[name] / grid) * grid for name in shapes}
    trees = (name for name in shapes if name.rpartition(".")[2] in ("column", "left"))
    tensors |= {name: np.full(shapes[name], child * name.endswith("left")) for name in trees}
    typed = {
        name: tensor.astype(np.float32 if name in frozen else dtype)
        for name, tensor in tensors.items()
    }
    said = None if base is None else replace(description, base=base).to_metadata()
    return safetensors.numpy.save(typed, metadata=said)


def phase_of(
    mechanism: str,
    parameters: Mapping[str, Any],
    *,
    frame: Document | None = None,
    tensors: tuple[str, ...] = tuple(NETWORK),
    epsilon: float = 1.0,
    basis: Basis = Basis.UNLEARNED,
) -> CertifyingPhase:
    """Return what an honest run of a plan would report."""
    draws = draws_of(mechanism, parameters, basis=basis)
    drawn = sum(each.count for each in draws)
    return CertifyingPhase(
        plan=Plan(
            mechanism=mechanism,
            parameters=parameters,
            epsilon=epsilon,
            delta=1e-5,
            budget_epochs=1.0,
            predicted={},
        ),
        parameters=parameters,
        frame=frame,
        tensors=tensors,
        noise=NoiseSection(generator=SECURE_NOISE, grid=grid_of(mechanism, draws), drawn=drawn)
        if draws
        else None,
        arithmetic=ARITHMETIC if issubclass(mechanism_named(mechanism), Deterministic) else None,
    )


def restating_claims(statement: Document, *, mechanism: str, parameters: Document) -> Document:
    """Return a statement with other parameters, and all that is claimed made to fit them."""
    old = statement["predicate"]
    relied = old.get("backbone")
    changed = unlearning_statement(
        basis=Basis(old["basis"]),
        subject=Subject(
            model="model",
            version=old["model"]["version"],
            weights_sha256="00" * 32,
            times=TIMES,
            previous_certificate=old["previous_certificate"],
            backbone=None if relied is None else Backbone(**relied).digest(),
        ),
        coverage=coverage(),
        phase=phase_of(mechanism, parameters, epsilon=old["target"]["epsilon"]),
        evaluation=EVALUATION,
    )["predicate"]
    fresh = deepcopy(statement)
    predicate = fresh["predicate"]
    predicate |= {name: changed[name] for name in ("guarantee", "accountant", "assumptions")}
    predicate["mechanism"] |= {
        name: changed["mechanism"][name] for name in ("name", "parameters", "noise")
    }
    return plain(fresh)


def exclusion(*, trained_anew: bool = False, base: BaseDigest | None = None) -> Document:
    """Return the statement that two records never touched the weights of the network."""
    weights = weights_of(NETWORK, np.float32, base=base)
    return plain(
        exclusion_statement(
            subject=_subject(weights, backbone=PUBLIC if base is None else None, base=base),
            exclusion=Excluded(
                since_version=1,
                requests=1,
                records=2,
                excluded=tree("e0", 7),
                first=3,
                leaves=2,
            ),
            trained_anew=trained_anew,
        )
    )


def as_trained(weights: bytes, *, version: int = 1) -> Document:
    """Return the statement of a version that nothing was unlearned from."""
    return plain(
        as_trained_statement(
            subject=_subject(weights, version=version, backbone=PUBLIC),
            evaluation=EVALUATION,
        )
    )


def again(statement: Document) -> Document:
    """Return a statement as it is made once more, for one more request."""
    later = Times(
        started_at=TIMES.started_at + timedelta(days=1),
        certified_at=TIMES.certified_at + timedelta(days=1),
    )
    return plain(
        restated(
            statement,
            coverage=coverage(requests=2),
            previous_certificate="1f" * 32,
            times=later,
        )
    )


def plain(document: Document) -> Document:
    """Return a document as it comes out of JSON."""
    read: Document = json.loads(json.dumps(document))
    return read


def _unlearned(
    mechanism: str,
    parameters: Mapping[str, Any],
    weights: bytes,
    *,
    frame: Document | None = None,
    epsilon: float,
    backbone: BackboneDigest | None,
    base: BaseDigest | None = None,
    evaluation: Mapping[str, Any] = EVALUATION,
    members: Sequence[Member] = (),
) -> Case:
    header = safetensors.numpy.load(weights)
    tensors = tuple(name for name in header if not name.startswith("backbone."))
    statement = unlearning_statement(
        basis=Basis.UNLEARNED,
        subject=_subject(weights, backbone=backbone, base=base),
        coverage=coverage(),
        phase=phase_of(mechanism, parameters, frame=frame, tensors=tensors, epsilon=epsilon),
        evaluation=evaluation,
        members=members,
    )
    return Case(plain(statement), weights)


def digest_of(weights: bytes) -> str:
    """Return what a statement calls these weights."""
    return hashlib.sha256(weights).hexdigest()


def _subject(
    weights: bytes,
    *,
    version: int = 2,
    backbone: BackboneDigest | None = None,
    base: BaseDigest | None = None,
) -> Subject:
    return Subject(
        model="model",
        version=version,
        weights_sha256=digest_of(weights),
        times=TIMES,
        previous_certificate=None if version == 1 else "0f" * 32,
        backbone=backbone,
        base=base,
    )


def _golden(name: str) -> Case:
    bundle = json.loads((GOLDEN / f"{name}.certificate.json").read_text())
    return Case(
        json.loads(base64.b64decode(bundle["envelope"]["payload"])),
        (GOLDEN / f"{name}.safetensors").read_bytes(),
    )
