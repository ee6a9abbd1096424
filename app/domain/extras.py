"""Libraries that come with an extra, and parts that may be left out: loaded where they are used."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from app.domain.errors import MissingExtraError

ACCOUNTING: Final = "accounting"
TABLES: Final = "tables"
SERVER: Final = "server"
WORKER: Final = "worker"
IMAGES: Final = "images"
ONNX: Final = "onnx"
OTEL: Final = "otel"
TORCH: Final = "torch"
VISION: Final = "vision"
TEXT: Final = "text"

_OURS: Final = frozenset({"app", "demo", "expunge", "migrations", "workers"})


def loaded(module: str, *, extra: str) -> ModuleType:
    """Import a module that needs an extra, or raise ``MissingExtraError``."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error, extra=extra) from error


def require(library: str, *, extra: str) -> None:
    """Raise ``MissingExtraError`` unless a library, which is imported later, is there."""
    try:
        found = find_spec(library)
    except ModuleNotFoundError:  # not even what it is a part of
        found = None
    if found is None:
        raise MissingExtraError(library, extra)


def missing(error: ModuleNotFoundError, *, extra: str) -> MissingExtraError:
    """Return what to raise for a missing library; a missing module of ours is raised as it is."""
    library = (error.name or "").partition(".")[0]
    if not library or library in _OURS:
        raise error
    return MissingExtraError(library, extra)
