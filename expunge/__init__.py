"""Expunge's public face: a client, verification, published models, and the accountants.

Each part is imported when it is first used, so that none needs the libraries of another.

    client = expunge.Client("http://127.0.0.1:8100", key)
    files = client.download("digits-mlp", Path("release"), trusted=Path("trusted-keys.json"))
    made = expunge.start(table, target="churned", subject="customer")
    model = expunge.load(files.weights, trusted="trusted-keys.json")
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.cli.commands.starting import start_rows as start
    from app.client import ApiError
    from app.client import ExpungeClient as Client
    from app.client.configured import configured_client as connect
    from app.client.published import verify
    from app.domain.errors import UnreadableRecordsError
    from app.planning.mechanisms.catalogue import account
    from workers.training.published.model import load

__all__ = [
    "ApiError",
    "Client",
    "UnreadableRecordsError",
    "account",
    "connect",
    "load",
    "start",
    "verify",
]

_PARTS = {
    "ApiError": ("app.client", "ApiError"),
    "Client": ("app.client", "ExpungeClient"),
    "UnreadableRecordsError": ("app.domain.errors", "UnreadableRecordsError"),
    "account": ("app.planning.mechanisms.catalogue", "account"),
    "connect": ("app.client.configured", "configured_client"),
    "load": ("workers.training.published.model", "load"),
    "start": ("app.cli.commands.starting", "start_rows"),
    "verify": ("app.client.published", "verify"),
}
_EXTRA = "torch"
"""What a part may need beside the libraries that always come along."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the parts
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PARTS[name]
    for package in ("app", "workers"):
        _require_ours(package)
    extras = import_module("app.domain.extras")
    globals()[name] = part = getattr(extras.loaded(module, extra=_EXTRA), attribute)
    return part


def __dir__() -> list[str]:
    return __all__


def _require_ours(package: str) -> None:
    """Refuse another package of the name of one of ours, such as a project's own ``app``."""
    module = sys.modules.get(package)
    spec = find_spec(package) if module is None else module.__spec__
    found = Path((spec and spec.origin) or "").resolve().parent
    if found.parent != Path(__file__).resolve().parent.parent:
        raise ImportError(
            f"the package {package!r} at {found} hides Expunge's own: use the command 'expunge' "
            "instead, or a process that does not find that package"
        )
