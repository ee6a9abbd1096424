"""Files of weights on the command line: safetensors, and PyTorch's own, which are converted here.

The service takes safetensors only and never loads PyTorch in its API.
"""

from pathlib import Path
from typing import Any

import typer

from app.domain.errors import InvalidInputError
from app.domain.extras import TORCH, loaded

_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"


def read_weights(file: Path, key: str | None) -> bytes:
    """Return a file's weights as safetensors.

    Args:
        file: safetensors, or what ``torch.save`` wrote.
        key: of the latter: where the weights are in it; None looks for them.

    Raises:
        InvalidInputError: it cannot be converted; the message says why.
        MissingExtraError: PyTorch, which a file of its own needs, is not installed.
    """
    content = file.read_bytes()
    if not content.startswith((_ZIP, _PICKLE)):
        if key is not None:
            raise InvalidInputError(f"{file.name} is not a PyTorch file: --key is for these")
        return content
    checkpoint_file: Any = loaded("workers.checkpoint_file", extra=TORCH)
    try:
        weights: bytes = checkpoint_file.converted(content, key)
    except InvalidInputError as error:
        raise InvalidInputError(f"{file.name}: {error}") from error
    typer.echo(f"{file.name}: converted to {len(weights):,} bytes of safetensors", err=True)
    return weights
