"""What is published of a model: the version that it serves now, as files."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.domain.release import CARD, CERTIFICATE, CONFIG, WEIGHTS, Release
from app.evidence.certificates.note import WitnessKey
from app.evidence.certificates.signing import StatementSigner, statement_of
from app.ledger import repository
from app.ledger.certificates import issuing
from app.ledger.certificates.bundles import bundle_of
from app.ledger.models import serving
from app.registry.card import model_card
from app.registry.tables import ModelRow, VersionRow
from app.registry.tasks import task_of
from app.storage.blobs import Blobs


def served(session: Session, model: ModelRow) -> tuple[str | None, str | None]:
    """Return the ids of the version that a model serves now, and of its certificate, or none."""
    version = serving.find_current_version(session, model)
    return (None, None) if version is None else (version.id, version.certificate_id)


def answered_by(session: Session, version_id: str) -> Sequence[str]:
    """Return the forget requests that a version was made for."""
    version = session.get_one(VersionRow, version_id)
    return [owed.request_id for owed in repository.obligations_of_run(session, version.run_id)]


@dataclass(frozen=True)
class Releases:
    """Makes releases; the certificates are those that the API shows."""

    blobs: Blobs
    signer: StatementSigner
    witnesses: Sequence[WitnessKey]

    def of(self, session: Session, model: ModelRow) -> Release | None:
        """Return what a model serves now, or None."""
        version = serving.find_current_version(session, model)
        if version is None:
            return None
        certificate = issuing.certificate(session, version.certificate_id)
        predicate = statement_of(certificate.envelope)["predicate"]
        bundle = bundle_of(session, certificate, signer=self.signer, witnesses=self.witnesses)
        card = model_card(
            model,
            version,
            schema=task_of(model).schema(),
            predicate=predicate,
            served=True,
            weights=WEIGHTS,
            certificate=CERTIFICATE,
        )
        epsilon, delta = (predicate["guarantee"].get(name) for name in ("epsilon", "delta"))
        facts = {
            "model": model.name,
            "version": version.number,
            "basis": predicate["basis"],
            "epsilon": epsilon,
            "delta": delta,
            "sha256": version.sha256,
        }
        blob_id, size_bytes = version.blob_id, version.size_bytes

        def weights() -> Iterable[bytes]:
            return self.blobs.open_range(blob_id, 0, size_bytes)

        return Release(
            version_id=version.id,
            number=version.number,
            certificate_id=certificate.id,
            sha256=version.sha256,
            size_bytes=size_bytes,
            epsilon=epsilon,
            delta=delta,
            files={
                CARD: _front_matter(facts).encode() + card.encode(),
                CERTIFICATE: json.dumps(bundle, indent=1).encode() + b"\n",
                CONFIG: _config(model, version).encode(),
            },
            weights=weights,
        )


def _front_matter(facts: dict[str, Any]) -> str:
    """Return the card's metadata as the Hub reads it: YAML, of which JSON is a part."""
    metadata = {
        "library_name": "expunge",
        "tags": ["machine-unlearning", "safetensors", "pytorch"],
        "expunge": facts,
    }
    lines = (f"{key}: {json.dumps(value)}" for key, value in metadata.items())
    return "---\n" + "\n".join(lines) + "\n---\n\n"


def _config(model: ModelRow, version: VersionRow) -> str:
    config = {
        "model_type": "expunge",
        "name": model.name,
        "version": version.number,
        "architecture": model.architecture,
        "task": model.task,
    }
    return json.dumps(config, indent=2, sort_keys=True) + "\n"
