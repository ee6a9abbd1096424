"""The service's own ids, which are opaque."""

from uuid import uuid4


def new_id(prefix: str) -> str:
    """Return a fresh id such as ``run_5b0c…``; it reveals only its kind."""
    return f"{prefix}_{uuid4().hex}"
