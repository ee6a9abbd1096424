"""The ``expunge`` command."""

import gc

gc.disable()  # Imports create no garbage; collecting would take a fifth of the start-up time.
from app.cli.main import main  # noqa: E402

gc.freeze()
gc.enable()

__all__ = ["main"]
