"""``/v1/models/{name}/targets``: where a model's served version is published."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import Field
from sqlalchemy.orm import Session

from app.api.protocol.access import GuardedRoute, ModelsReader, ModelsWriter, ServicesOf
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Name
from app.delivery.publishing import repository
from app.delivery.publishing.tables import PlacementRow
from app.domain.errors import InvalidInputError
from app.registry import repository as registry
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database.endings import require_live
from app.services import Services

router = APIRouter(prefix="/v1/models/{name}/targets", tags=["models"], route_class=GuardedRoute)

TargetName = Annotated[
    Name, Path(description="A name in `EXPUNGE_PUBLISHERS`.", examples=["registry"])
]


class TargetAnswer(Answer):
    """One place where a model is published, or from where it must still go."""

    target: str
    kind: Literal["mlflow", "folder", "s3"] | None = Field(
        description="Null if `EXPUNGE_PUBLISHERS` does not name the target any more."
    )
    wanted: bool = Field(
        description="Whether the served version should be there; else nothing of the model should."
    )
    state: Literal["settled", "pending", "failing"] = Field(
        description="`settled` if the target holds what it should. `failing` after a failed "
        "attempt; it is repeated."
    )
    version: int | None = Field(
        description="What should be there, as of the last attempt. Null for nothing."
    )
    present: list[int] = Field(
        description="The versions that may be there: from before the first byte is sent until the "
        "target was seen to hold them no more."
    )
    attempts: int = Field(description="Failed ones since the last success.")
    failure: str | None = Field(description="Why the last attempt failed.")
    next_attempt_at: datetime | None
    unsettled_since: datetime | None
    checked_at: datetime | None = Field(
        description="When the target was last seen to hold what it should, and nothing else."
    )


@router.get("", **answers(404))
def list_model_targets(name: str, services: ServicesOf, _: ModelsReader) -> list[TargetAnswer]:
    """List the targets at which a model should be, and those from which it must still go."""
    with services.database.snapshot() as session:
        return target_answers(session, services, registry.model_named(session, name))


@router.put("/{target}", **answers(404, 410, status=202))
def publish_model(
    name: str, target: TargetName, services: ServicesOf, _: ModelsWriter
) -> TargetAnswer:
    """Publish a model's served version at a target from now on, and remove superseded ones.

    Called again, it tries again at once what has failed so far.
    """
    with services.database.transaction() as session:
        model = registry.model_named(session, name, lock=True)
        require_live("model", model)
        known = sorted(services.settings.publishers)
        if target not in known:
            names = ", ".join(known) if known else "it names none"
            raise InvalidInputError(f"EXPUNGE_PUBLISHERS has no target {target!r}: {names}")
        return _answer(session, services, repository.want(session, model, target))


@router.delete("/{target}", **answers(404, status=202))
def unpublish_model(
    name: str, target: TargetName, services: ServicesOf, _: ModelsWriter
) -> TargetAnswer:
    """Remove all of a model from a target.

    The target is listed until it holds nothing of it any more.
    """
    with services.database.transaction() as session:
        model = registry.model_named(session, name, lock=True)
        return _answer(session, services, repository.unwant(session, model, target))


def target_answers(session: Session, services: Services, model: ModelRow) -> list[TargetAnswer]:
    """Return the targets of a model as they are shown."""
    rows = repository.of_model(session, model.id)
    return [_answer(session, services, row) for row in rows]


def _answer(session: Session, services: Services, row: PlacementRow) -> TargetAnswer:
    publisher = services.settings.publishers.get(row.target)
    version = None if row.version_id is None else session.get_one(VersionRow, row.version_id)
    return TargetAnswer.of(
        row,
        kind=None if publisher is None else publisher.kind,
        wanted=row.is_wanted,
        state="settled" if row.due_at is None else "pending" if row.failure is None else "failing",
        version=None if version is None else version.number,
        present=repository.numbers_present(session, row.id),
        failure=row.failure if row.due_at is not None else None,
        next_attempt_at=row.due_at,
    )
