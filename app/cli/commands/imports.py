"""``expunge dataset import``: files that the service reads by reference."""

from typing import Annotated

from app.cli.commands.resources import DatasetName
from app.cli.connection import service, show_answer
from app.cli.options import argument
from app.cli.output import show
from app.cli.waiting import Wait, show_import

_IMPORTS = ("id", "url", "state", "rows", "total_rows", "added", "created_at", "failure_reason")
ImportId = Annotated[str, argument("IMPORT", "The import's id.")]


def import_(
    name: DatasetName,
    url: Annotated[
        str,
        argument(
            "URL",
            "s3://, gs:// or file://: a Parquet file, a folder, or a pattern with * and ?; "
            "https://: a file. It must lie under EXPUNGE_IMPORT_PREFIXES of the service.",
        ),
    ],
    *,
    wait: Wait = False,
) -> None:
    """Have the service read the Parquet files at URL into DATASET.

    New records are added, equal ones are left, changed ones are counted and left.
    """
    with service() as client:
        show_import(client, client.import_records(name, url), wait=wait)


def imports(
    name: DatasetName,
    import_id: Annotated[
        str | None, argument("[IMPORT]", "Only this one, with its faults.")
    ] = None,
    *,
    wait: Wait = False,
) -> None:
    """List DATASET's imports, or show one and how far it is."""
    with service() as client:
        if import_id is None:
            show(client.imports(name), _IMPORTS)
        else:
            show_import(client, client.import_of(name, import_id), wait=wait)


def cancel_import(name: DatasetName, import_id: ImportId) -> None:
    """Cancel an import; what it has added stays."""
    show_answer(lambda client: client.cancel_import(name, import_id))


def retry_import(name: DatasetName, import_id: ImportId, *, wait: Wait = False) -> None:
    """Let an import go on that failed or was cancelled.

    Files that are done are not read again.
    """
    with service() as client:
        show_import(client, client.retry_import(name, import_id), wait=wait)
