"""Computes a version again, from its records alone: ``python -m workers recompute MODEL``.

An exact head is a function of them; a network, or a member of an ensemble, of them and the seed of
its training. Earlier weights and stored sums are not read, and features of a backbone are made
anew: what comes out is what a service would release that never saw the forgotten records. With what
its certificate names, it is the released file byte for byte. The file itself is read only if it is
another one, to name the first tensor that differs.

``python -m workers recompute-kit MODEL DIR`` writes what somebody needs who has the records and no
service, and ``python -m expunge.recompute DIR FILE`` uses it. A service holds no ids of records, so
a kit names them by keyed hashes of what the network reads of them.
"""

import hmac
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.domain.architectures import Member, out_of, tensor_name
from app.domain.description import ModelDescription
from app.domain.errors import ConflictError, ExpungeError, InvalidInputError, NotReadyError
from app.domain.plan import Plan, TrainingKind
from app.domain.policy import Policy
from app.domain.provenance import Provenance
from app.domain.recipes import TrainingRecipe
from app.evidence.certificates.weights_file import WeightsFile
from app.ledger import repository
from app.ledger.leaving_out import provenance_of
from app.ledger.selections import Selection
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.columns.reading import read_source
from app.registry.membership import membership_at
from app.registry.tables import BackboneRow, ModelRow, VersionRow
from app.registry.training_set import TrainingSet
from app.runtime.locations import embedded_postgres
from app.runtime.settings import Settings
from app.services import Services, open_services
from app.storage.objects import write_durably
from app.storage.weights_content import WeightsContent
from workers.data.backbone import Backbone, FrozenBackbone, publishable, starting
from workers.data.loading import ModelSpec, load_model, readers_for
from workers.data.member_records import MemberRecords
from workers.data.memory import allowance
from workers.data.run_records import selected
from workers.data.shards import Selected, read_shards
from workers.mechanisms.catalogue import solver_of
from workers.mechanisms.ensembles.training import train_member
from workers.seal.ram_only import ram_only
from workers.training.examples import Examples
from workers.training.networks.network import Network
from workers.training.part import Part
from workers.training.seed import Seed, made_with
from workers.training.tasks.catalogue import encoder_of, task_of
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


def recompute(services: Services, name: str, *, member: int | None = None) -> Recomputed:
    """Compute the newest version of a model again, or one of its members.

    Raises:
        NotFoundError: the model does not exist.
        NotReadyError: it has no version yet.
        ConflictError: its weights do not follow from its records and a seed that was kept, or it
            waits to forget some; or the features of its backbone are not of one record alone.
    """
    version, spec = _loaded(services, name, member)
    unlike: Mapping[str, str] = {}
    if version.plan.training is TrainingKind.EXACT:
        content = _solved(services, spec, version)
    else:
        examples_of, known = _read_anew(services, spec, version), version.known(services)
        content, unlike = _trained(spec, services.settings, version.plan, known, examples_of)
    return _compared(
        content,
        version.head.number,
        version.head.sha256 if member is None else str(version.members[member].sha256),
        records=sum(map(len, version.seqs.values())),
        member=member,
        released_tensors=lambda: _digests(services.blobs.read(version.head.blob_id)),
        unlike=unlike,
    )


def write_kit(services: Services, name: str, out: Path) -> None:
    """Write what the newest version of a network can be computed again from, but its records.

    It has the seeds: whoever has it and the weights can try records. Raises what ``recompute``
    raises, and ``ConflictError`` for a head.
    """
    version, spec = _loaded(services, name, None)
    if version.plan.training is TrainingKind.EXACT or isinstance(spec.backbone, FrozenBackbone):
        raise ConflictError(
            "a kit is of a network without a frozen backbone: use 'model recompute'"
        )
    examples_of, known = _read_anew(services, spec, version), version.known(services)
    released, salt = services.blobs.read(version.head.blob_id), os.urandom(32)
    kit = {
        "file": WeightsFile(BytesIO(released)).description().to_metadata(),  # type: ignore[union-attr]
        "recipe": spec.recipe.to_json(),
        "plan": version.plan.to_json(),
        "released": version.head.sha256,
        "tensors": _digests(released),
        "salt": salt.hex(),
        "members": {
            member: asdict(known[member]) | {"records": _names(examples_of(member), salt)}
            for member in version.seqs
        },
    }
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    installed = {f"{each.name}=={each.version}" for each in metadata.distributions()}
    files = {
        "kit.json": json.dumps(kit, indent=1),
        "requirements.txt": "\n".join(sorted(installed)),
    }
    for file, text in files.items():
        write_durably(out / file, [text.encode()])
    if spec.backbone is not None:
        with services.database.transaction() as session:
            public = session.get_one(BackboneRow, spec.backbone.id).blob_id
        write_durably(out / "backbone.safetensors", [services.blobs.read(str(public))])


def recompute_from(kit_directory: Path, records: Path) -> Recomputed:
    """Compute a kit's version again, from a file that holds its records, in whatever order.

    Whoever made the kit is who is checked. With records that remain alone in the file, none that
    was forgotten can be among those that it names, nor one of two equal ones.

    Raises:
        ConflictError: some of them are not in the file, or not as often, or are others there; or
            the public weights are not those that the version states.
        ExpungeError: the kit or the file cannot be read, or its rows not be encoded.
    """
    settings = Settings()
    try:
        kit = json.loads((kit_directory / "kit.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{kit_directory} is no kit of 'recompute-kit'") from error
    described = ModelDescription.from_metadata(kit["file"])
    if described is None:
        raise InvalidInputError("the kit describes no model")
    task = task_of(described.task, allowed=settings.allowed_factories, in_full=True)
    backbone = None
    if described.backbone is not None:
        about, public = described.backbone, (kit_directory / "backbone.safetensors").read_bytes()
        if sha256(public).hexdigest() != about.sha256:
            raise ConflictError(
                f"backbone.safetensors is not backbone {about.name!r}, as the version states it"
            )
        weights = safetensors.torch.load(public)
        backbone = Backbone("", about.name, about.sha256, frozen=False, weights=weights)
    recipe = TrainingRecipe.from_json(kit["recipe"])
    rows = read_source(records).whole()
    schema = described.schema
    spec = ModelSpec(described, recipe, Policy(), schema, "", rows.schema, task, backbone)
    given = Part(np.arange(rows.num_rows), encoder_of(described.task, task)(rows))
    taken = Selected(given.seqs, spec.form)
    taken.take(given)
    everything = taken.examples()
    there = _names(everything, bytes.fromhex(kit["salt"]))
    places = {key: at for at, key in enumerate(there)}
    named = [key for each in kit["members"].values() for key in each["records"]]
    if missing := (Counter(named) - Counter(there)).total():
        raise ConflictError(
            f"{missing} of {len(named)} records are not in {records.name}, or are others there"
        )

    def examples_of(member: int) -> Examples:
        own = kit["members"][str(member)]["records"]
        return everything.select(np.array([places[key] for key in own], dtype=np.int64))

    known = {
        int(member): Provenance(each["seed"], each["made_with"])
        for member, each in kit["members"].items()
    }
    plan = Plan.from_json(kit["plan"])
    content, unlike = _trained(spec, settings, plan, known, examples_of)
    return _compared(
        content,
        described.version,
        kit["released"],
        records=len(named),
        released_tensors=lambda: kit["tensors"],
        unlike=unlike,
    )


@dataclass(frozen=True, eq=False)
class _Version:
    """A head, and the records that each of its members is computed from; alone it is number 0.

    ``held_out`` are those that told when its training ended.
    """

    head: VersionRow
    plan: Plan
    members: Sequence[Member]
    seqs: Mapping[int, NDArray[np.int64]]
    held_out: NDArray[np.int64]

    def known(self, services: Services) -> dict[int, Provenance]:
        found = provenance_of(services.database, services.blobs, self.head.id)
        if not found.keys() >= self.seqs.keys():
            raise _unrelated(self.head.number, self.plan)
        return {member: found[member] for member in self.seqs}


def _loaded(services: Services, name: str, member: int | None) -> tuple[_Version, ModelSpec]:
    with services.database.transaction() as session:
        version = _version(session, name, member)
    spec = load_model(services, version.head.model_id)
    number, out = version.head.number, dict(out_of(version.members))
    return version, replace(spec, description=replace(spec.description, version=number, out=out))


def _version(session: Session, name: str, member: int | None) -> _Version:
    model = registry.model_named(session, name)
    head = registry.head_version(session, model)
    if head is None:
        raise NotReadyError(f"model {name!r} has no version yet")
    plan = Plan.from_json(repository.run(session, head.run_id).plan)
    if plan.training is not TrainingKind.EXACT and head.provenance is None:
        raise _unrelated(head.number, plan)
    members, seqs = registry.members_of(head), dict[int, NDArray[np.int64]]()
    held_out = np.empty(0, dtype=np.int64)
    if not members and member is None:
        seqs[0], held_out = _retained(session, model, head, 0, as_of=head.covers_epoch)
    for place, each in enumerate(members):
        if member in (None, place) and each.is_active:
            query = select(VersionRow).where(VersionRow.model_id == model.id)
            maker = session.scalars(query.where(VersionRow.number == each.trained_in)).one()
            as_of = repository.run(session, maker.run_id).forget_epoch or 0
            seqs[place], _ = _retained(session, model, maker, place, as_of=as_of)
    if not seqs:
        raise ConflictError(f"version {head.number} of {name!r} has no active member {member}")
    return _Version(head, plan, members, seqs, held_out)


def _retained(
    session: Session, model: ModelRow, maker: VersionRow, member: int, *, as_of: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the records that a training read, by a version, in its order: all are still there.

    The second ones are held-out records that told when it ended.
    """
    through, after = maker.trained_through, maker.trained_after_epoch
    membership = membership_at(model, through=through, after_epoch=after)
    sets = [TrainingSet(session, model, membership, as_of=epoch) for epoch in (as_of, None)]
    read = [each.by_member({member})[member] for each in sets]
    told = [each.held_out.retained[: None if membership.stops_early else 0] for each in sets]
    if not all(np.array_equal(then, now) for then, now in (read, told)):
        raise ConflictError(
            f"version {maker.number} of {model.name!r} learned from records that are to be "
            "forgotten: wait for the next"
        )
    return read[0], told[0]


def _unrelated(number: int, plan: Plan) -> ConflictError:
    return ConflictError(
        f"version {number} was made by {plan.mechanism}; its weights are no function of the "
        "records alone, and of no seed that was kept: nothing can be computed again"
    )


def _solved(services: Services, spec: ModelSpec, version: _Version) -> WeightsContent:
    selection = Selection(version.seqs[0], held_out=version.held_out, plan=version.plan)
    shards = read_shards(services, spec.dataset_id, readers_for(services, spec).anew)
    data = selected(spec, selection, shards)
    factory, cpu = spec.factory(services.settings), torch.device("cpu")
    network = Network(factory, device=cpu, dtype=torch.float64)
    solver_of(version.plan)(network, data, spec.description.task)
    tensors = publishable(spec.backbone, network.tensors())
    return WeightsContent(tensors, spec.description.to_metadata())


def _read_anew(services: Services, spec: ModelSpec, version: _Version) -> Callable[[int], Examples]:
    """Return what reads a member's records; of a frozen backbone, features are made anew."""
    anew = readers_for(services, spec).anew

    def parts(wanted: NDArray[np.int64]) -> Iterator[Part]:
        with services.database.transaction() as session:
            shards = [each.id for each in datasets.shards(session, spec.dataset_id) if each.rows]
        return (anew(shard_id, wanted) for shard_id in shards)

    most = allowance(services.settings.worker_memory) // 4 // spec.form.record_bytes
    return MemberRecords(version.seqs, spec.form, parts, most=most).of


def _trained(
    spec: ModelSpec,
    settings: Settings,
    plan: Plan,
    known: Mapping[int, Provenance],
    examples_of: Callable[[int], Examples],
) -> tuple[WeightsContent, dict[str, str]]:
    """Return the file of these members, trained anew, and what is known to be different here."""
    fresh, described = starting(spec.backbone, spec.factory(settings)), spec.description
    tensors, unlike = dict[str, NDArray[Any]](), dict[str, str]()
    for member, origin in sorted(known.items()):
        torch.set_num_threads(int(origin.made_with["threads"]))
        examples = examples_of(member)
        with ram_only(plan.training):
            made, anew = train_member(spec, plan, examples, fresh, seed=Seed(origin.seed))
        here = made_with(choose_device()) if anew is None else anew.made_with
        unlike |= {
            what: f"{here.get(what)}, and {then} then"
            for what, then in origin.made_with.items()
            if here.get(what) != then
        }
        ensemble = described.architecture.of is not None
        named = partial(tensor_name, member) if ensemble else str
        tensors |= {named(name): tensor for name, tensor in made.items()}
    base = Network(fresh, device=choose_device()).base
    whole = publishable(spec.backbone, tensors)
    return WeightsContent(whole, replace(described, base=base).to_metadata()), unlike


def _compared(
    content: WeightsContent,
    version: int,
    released: str,
    *,
    records: int,
    released_tensors: Callable[[], Mapping[str, str]],
    unlike: Mapping[str, str],
    member: int | None = None,
) -> Recomputed:
    whole = content[: len(content)]
    computed = sha256(whole).hexdigest()
    if member is not None:
        computed = WeightsFile(BytesIO(whole)).digests_of_members()[member]
    found = Recomputed(version, released, computed, records)
    if found.is_equal:
        return found
    there = released_tensors()
    differing = (name for name, each in _digests(whole).items() if there.get(name) != each)
    return replace(found, differs=next(differing, "what the file says"), unlike=unlike)


def _digests(content: bytes) -> dict[str, str]:
    """Return the digest of each tensor of a file, with its form, by its name."""
    return {
        name: sha256(f"{each.dtype} {each.shape} ".encode() + each.tobytes()).hexdigest()
        for name, each in sorted(safetensors.numpy.load(content).items())
    }


def _names(examples: Examples, salt: bytes) -> list[str]:
    """Return the keyed hash of each record: equal records have equal ones."""
    columns = [
        np.ascontiguousarray(each.numpy()).view(np.uint8).reshape(len(examples), -1)
        for _, each in sorted(examples.tensors.items())
        if len(examples)
    ]
    rows = np.concatenate(columns, axis=1) if columns else ()
    return [hmac.digest(salt, row.tobytes(), "sha256").hex() for row in rows]


def main() -> None:
    """Compute the model that the command line names again, and print what comes out as JSON.

    Or write its kit.
    """
    settings = Settings()
    part, name, *more = sys.argv[1:]
    try:
        with embedded_postgres(settings):
            services = open_services(settings)
            try:
                if part == "recompute-kit":
                    write_kit(services, name, Path(more[0]))
                    return
                found = recompute(services, name, member=int(more[0]) if more else None)
            finally:
                services.database.dispose()
    except ExpungeError as error:
        sys.exit(f"error: {error}")
    print(json.dumps(asdict(found) | {"equal": found.is_equal}))  # noqa: T201
