"""Files of weights on the command line: safetensors, and PyTorch's own, which are converted here.

The service takes safetensors only and never loads PyTorch in its API. A PyTorch file is a pickle:
it is read without running code, by a process of its own with limited memory and no secrets.
"""

import json
import subprocess
from pathlib import Path
from typing import Final

import typer

from app.domain.errors import InvalidInputError
from app.domain.extras import TORCH, require
from app.runtime.processes import confined

_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_LONGEST_S: Final = 600.0


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
    require("torch", extra=TORCH)
    answer = _converted(content, key)
    verdict, _, weights = answer.partition(b"\n")
    if verdict != b"ok":
        reason = verdict.decode() or "the process that read it ended: it is damaged or too large"
        raise InvalidInputError(f"{file.name}: {reason}")
    typer.echo(f"{file.name}: converted to {len(weights):,} bytes of safetensors", err=True)
    return weights


def _converted(content: bytes, key: str | None) -> bytes:
    process = confined.start("workers.checkpoint_file", pipe=subprocess.PIPE)
    try:
        order = json.dumps(key).encode() + b"\n"
        answer, _ = process.communicate(order + content, timeout=_LONGEST_S)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        return b""
    finally:
        process.kill()
    return answer
