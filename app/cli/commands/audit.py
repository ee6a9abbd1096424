"""Who did what, over HTTP."""

import json
from typing import Annotated

from app.cli.connection import service
from app.cli.options import option
from app.cli.output import conclude, say


def audit(
    *,
    caller: Annotated[
        str | None, option("Only this caller: a key's id, 'operator' or 'service'.")
    ] = None,
    kind: Annotated[str | None, option("Only this kind, such as request.accepted.")] = None,
    limit: Annotated[int, option("The most entries to show.", min=1)] = 50,
) -> None:
    """Show who did what, newest first: the log's entries with the callers behind them."""
    with service() as client:
        entries = list(client.audit(caller=caller, kind=kind, limit=limit))
        for entry in entries:
            name = f" ({entry['name']})" if entry["name"] else ""
            facts = json.dumps(entry["facts"], sort_keys=True)
            say(f"{entry['recorded_at']}  {entry['by']}{name}  {entry['kind']}  {facts}")
        conclude(entries)
