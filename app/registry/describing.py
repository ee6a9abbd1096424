"""What the file of a model's next version says of it."""

from sqlalchemy.orm import Session

from app.domain.architectures import ArchitectureSpec, FeatureLayer
from app.domain.description import BackboneDescription, ModelDescription
from app.registry import repository
from app.registry.backbones.use import backbone_of
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import ModelRow
from app.registry.tasks import task_of


def describe(session: Session, model: ModelRow, dataset: DatasetRow) -> ModelDescription:
    """Return the description of a model's next version.

    While a run of the model goes on, only that run can publish, so that the number stays the next.
    """
    architecture, task = ArchitectureSpec.from_json(model.architecture), task_of(model)
    return ModelDescription(
        model=model.name,
        version=repository.next_number(session, model.id),
        architecture=architecture,
        task=task,
        schema=task.schema(),
        backbone=_backbone(session, architecture),
        record_id=dataset.schema["record_id"],
    )


def _backbone(session: Session, architecture: ArchitectureSpec) -> BackboneDescription | None:
    row = backbone_of(session, architecture)
    if row is None or row.sha256 is None or architecture.backbone is None:
        return None
    return BackboneDescription(
        name=row.name,
        sha256=row.sha256,
        frozen=architecture.backbone.frozen,
        architecture=ArchitectureSpec.from_json(row.architecture),
        classes=row.classes,
        layers=FeatureLayer.all_from_json(row.layers),
    )
