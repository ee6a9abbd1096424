"""How schemathesis sends the bodies that it does not know."""

from typing import Any

import schemathesis


@schemathesis.serializer("application/vnd.apache.parquet")
def parquet(_: Any, value: Any) -> Any:
    """Send bytes as they are."""
    return value if isinstance(value, bytes) else str(value).encode()
