"""What a model learns from its dataset."""

from app.domain.table_schema import TableSchema
from app.domain.tasks import catalogue
from app.domain.tasks.reading import require_readable
from app.domain.tasks.spec import TaskSpec
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import ModelRow


def task_for(document: object, dataset: DatasetRow) -> TaskSpec:
    """Return the task of a definition's JSON.

    Raises:
        InvalidInputError: it is malformed, or not for this dataset; the message says what to do.
    """
    spec = catalogue.from_json(document)
    require_readable(spec, TableSchema.from_json(dataset.schema))
    return spec


def task_of(model: ModelRow) -> TaskSpec:
    """Return a model's task."""
    return catalogue.from_json(model.task)
