"""What a model learns from its dataset, and what its network therefore reads."""

from app.domain.errors import InvalidInputError
from app.domain.schema import FeatureSchema
from app.domain.table_schema import TableSchema
from app.domain.tasks import catalogue
from app.domain.tasks.reading import require_readable
from app.domain.tasks.spec import TaskSpec
from app.registry.datasets.service import schema_of
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import ModelRow


def task_for(document: object, dataset: DatasetRow) -> TaskSpec:
    """Return the task of a definition's JSON, completed by what the dataset says.

    None asks for classification by the labels of a dataset of features.

    Raises:
        InvalidInputError: it is malformed, or not for this dataset; the message says what to do.
    """
    schema = schema_of(dataset)
    if isinstance(schema, TableSchema):
        if document is None:
            raise InvalidInputError(
                f"dataset {dataset.name!r} consists of columns: the model needs a task, which says "
                "which of them are inputs and which is the target"
            )
        spec = catalogue.from_json(document)
        require_readable(spec, schema)
        return spec
    return catalogue.on_features(document, schema)


def task_of(model: ModelRow) -> TaskSpec:
    """Return a model's task."""
    return catalogue.from_json(model.task)


def schema_for(spec: TaskSpec, dataset: DatasetRow) -> FeatureSchema:
    """Return the schema of what a task's network reads, before a backbone."""
    schema = schema_of(dataset)
    return spec.schema() if isinstance(schema, TableSchema) else spec.schema(schema)
