"""The ``expunge`` command."""

import gc

gc.disable()  # What is loaded here stays. To look it over again and again is a fifth of the start.
from app.cli.main import main  # noqa: E402

gc.freeze()
gc.enable()

__all__ = ["main"]
