"""``python -m workers recompute MODEL``: computes a version again, from the records alone.

An exact head is a function of them; a network, or a member of an ensemble, of them and the seed of
its training. Earlier weights and stored sums are not read, and features of a backbone are made
anew: what comes out is what a service would release that never saw the forgotten records. With what
its certificate names, it is the released file byte for byte. The file itself is read only if it is
another one, to name the first tensor that differs.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from io import BytesIO
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.domain.architectures import out_of, tensor_name
from app.domain.errors import ConflictError, ExpungeError, NotReadyError
from app.domain.plan import Plan, TrainingKind
from app.domain.provenance import Provenance
from app.evidence.certificates.weights_file import WeightsFile
from app.ledger import repository
from app.ledger.leaving_out import provenance_of
from app.ledger.selections import Selection
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.membership import membership_at
from app.registry.tables import ModelRow, VersionRow
from app.registry.training_set import TrainingSet
from app.runtime.locations import embedded_postgres
from app.runtime.settings import Settings
from app.services import Services, open_services
from app.storage.weights_content import WeightsContent
from workers.data.backbone import publishable, starting
from workers.data.loading import ModelSpec, load_model, readers_for
from workers.data.member_records import MemberRecords
from workers.data.memory import allowance
from workers.data.run_records import selected
from workers.data.shards import read_shards
from workers.mechanisms.catalogue import solver_of
from workers.mechanisms.ensembles.training import Numbers, train_member
from workers.seal.ram_only import ram_only
from workers.training.networks.network import Network
from workers.training.part import Part
from workers.training.seed import Seed, made_with
from workers.training.team import choose_device


@dataclass(frozen=True)
class Recomputed:
    """A version, or a member of it, and what was computed for it again.

    Attributes:
        version: its number.
        released: SHA-256 of the released weights, in hex: of the file, or of the member.
        computed: of those that were computed now.
        records: how many they were computed from.
        differs: the first tensor that is another one.
        unlike: what is known to be different here, and what it was then.
    """

    version: int
    released: str
    computed: str
    records: int
    differs: str | None = None
    unlike: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether they are the same."""
        return self.computed == self.released


@dataclass(frozen=True, eq=False)
class _Version:
    """What is computed again: members, of which a network or head alone is number 0."""

    id: str
    number: int
    sha256: str
    blob_id: str
    model_id: str
    plan: Plan
    members: Mapping[int, str | None]
    out: Mapping[int, int]
    seqs: Mapping[int, NDArray[np.int64]]


def recompute(services: Services, name: str, *, member: int | None = None) -> Recomputed:
    """Compute the newest version of a model again, or one of its members.

    Raises:
        NotFoundError: the model does not exist.
        NotReadyError: it has no version yet.
        ConflictError: its weights do not follow from its records and a seed that was kept, or it
            waits to forget some; or the features of its backbone are not of one record alone.
    """
    with services.database.transaction() as session:
        version = _version(session, name, member)
    spec = load_model(services, version.model_id)
    number = len(np.concatenate([*version.seqs.values()]))
    described = replace(spec.description, version=version.number, out=dict(version.out))
    if version.plan.training is TrainingKind.EXACT:
        tensors = _solved(services, spec, version)
        content = WeightsContent(publishable(spec.backbone, tensors), described.to_metadata())
        return _compared(services, version, content, number, {})
    known = provenance_of(services.database, services.blobs, version.id)
    if not known.keys() >= version.seqs.keys():
        raise _unrelated(version.number, name, version.plan)
    tensors, unlike = _trained(services, spec, version, known)
    with torch.random.fork_rng(devices=[]):
        base = Network(
            starting(spec.backbone, spec.factory(services.settings)), device=choose_device()
        ).base
    described = replace(described, base=base)
    content = WeightsContent(publishable(spec.backbone, tensors), described.to_metadata())
    return _compared(services, version, content, number, unlike, member)


def _version(session: Session, name: str, member: int | None) -> _Version:
    model = registry.model_named(session, name)
    head = registry.head_version(session, model)
    if head is None:
        raise NotReadyError(f"model {name!r} has no version yet")
    plan = Plan.from_json(repository.run(session, head.run_id).plan)
    members = registry.members_of(head)
    if plan.training is not TrainingKind.EXACT and head.provenance is None:
        raise _unrelated(head.number, name, plan)
    seqs: dict[int, NDArray[np.int64]] = {}
    if not members:
        if member is not None:
            raise ConflictError(f"model {name!r} has no members: leave --member out")
        seqs[0] = _retained(session, model, head, 0, as_of=head.covers_epoch)
    for place, each in enumerate(members):
        if member in (None, place) and each.trained_in is not None:
            query = select(VersionRow).where(VersionRow.model_id == model.id)
            maker = session.scalars(query.where(VersionRow.number == each.trained_in)).one()
            as_of = repository.run(session, maker.run_id).forget_epoch or 0
            seqs[place] = _retained(session, model, maker, place, as_of=as_of)
    if not seqs:
        raise ConflictError(f"version {head.number} of {name!r} has no active member {member}")
    return _Version(
        head.id,
        head.number,
        head.sha256,
        head.blob_id,
        model.id,
        plan,
        {place: each.sha256 for place, each in enumerate(members)},
        out_of(members),
        seqs,
    )


def _retained(
    session: Session, model: ModelRow, maker: VersionRow, member: int, *, as_of: int
) -> NDArray[np.int64]:
    """Return the records that a training read, by a version, in its order: all are still there."""
    membership = membership_at(
        model, through=maker.trained_through, after_epoch=maker.trained_after_epoch
    )
    then, now = (
        TrainingSet(session, model, membership, as_of=epoch).by_member({member})[member]
        for epoch in (as_of, None)
    )
    if not np.array_equal(then, now):
        raise ConflictError(
            f"version {maker.number} of {model.name!r} learned from records that are to be "
            "forgotten: wait for the next"
        )
    return then


def _unrelated(number: int, name: str, plan: Plan) -> ConflictError:
    return ConflictError(
        f"version {number} of {name!r} was made by {plan.mechanism}; its weights are no function "
        "of the records alone, and of no seed that was kept: nothing can be computed again"
    )


def _solved(services: Services, spec: ModelSpec, version: _Version) -> Numbers:
    selection = Selection(version.seqs[0], held_out=np.empty(0, dtype=np.int64), plan=version.plan)
    shards = read_shards(services, spec.dataset_id, readers_for(services, spec).anew)
    data = selected(spec, selection, shards)
    network = Network(
        spec.factory(services.settings), device=torch.device("cpu"), dtype=torch.float64
    )
    solver_of(version.plan)(network, data, spec.description.task)
    return network.tensors()


def _trained(
    services: Services, spec: ModelSpec, version: _Version, known: Mapping[int, Provenance]
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the tensors by their names in the file, and what is known to be different here."""
    anew = readers_for(services, spec).anew

    def parts(wanted: NDArray[np.int64]) -> Iterator[Part]:
        with services.database.transaction() as session:
            shards = [each.id for each in datasets.shards(session, spec.dataset_id) if each.rows]
        return (anew(shard_id, wanted) for shard_id in shards)

    most = allowance(services.settings.worker_memory) // 4 // spec.form.record_bytes
    records = MemberRecords(version.seqs, spec.form, parts, most=most)
    fresh = starting(spec.backbone, spec.factory(services.settings))
    found: dict[str, NDArray[Any]] = {}
    unlike: dict[str, str] = {}
    for member in sorted(version.seqs):
        then, examples = known[member].made_with, records.of(member)
        torch.set_num_threads(int(then["threads"]))
        here = made_with(choose_device())
        unlike |= {
            what: f"{here.get(what)}, and {value} then"
            for what, value in then.items()
            if here.get(what) != value
        }
        with ram_only(version.plan.training):
            made = train_member(
                spec, version.plan, examples, fresh, seed=Seed(known[member].seed)
            ).tensors
        named = partial(tensor_name, member) if version.members else str
        found |= {named(name): tensor for name, tensor in made.items()}
    return found, unlike


def _compared(
    services: Services,
    version: _Version,
    content: WeightsContent,
    records: int,
    unlike: Mapping[str, str],
    member: int | None = None,
) -> Recomputed:
    released, whole = version.sha256, content[: len(content)]
    computed = sha256(whole).hexdigest()
    if member is not None:
        released = str(version.members[member])
        computed = WeightsFile(BytesIO(whole)).digests_of_members()[member]
    found = Recomputed(version.number, released, computed, records)
    if found.is_equal:
        return found
    there, here = (
        safetensors.numpy.load(each) for each in (services.blobs.read(version.blob_id), whole)
    )
    differing = (
        name
        for name in sorted(here)
        if name not in there or _bits(here[name]) != _bits(there[name])
    )
    return replace(found, differs=next(differing, "none: what the file says"), unlike=unlike)


def _bits(tensor: NDArray[Any]) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.tobytes()


def main() -> None:
    """Compute the model that the command line names again, and print what comes out as JSON."""
    settings = Settings()
    name, *member = sys.argv[2:]
    try:
        with embedded_postgres(settings):
            services = open_services(settings)
            try:
                found = recompute(services, name, member=int(member[0]) if member else None)
            finally:
                services.database.dispose()
    except ExpungeError as error:
        sys.exit(f"error: {error}")
    print(json.dumps(asdict(found) | {"equal": found.is_equal}))  # noqa: T201
