"""Calls the operator's own code, and says what it raised: in full, or only where.

Its author needs the traceback, but a message may quote whatever the code was given. So the text is
complete only where this process has read no record yet; otherwise it is type, file and line.
"""

import importlib
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import torch

from app.domain.architectures import is_allowed
from app.domain.errors import ExpungeError, RunFailedError, WriteRefusedError

Result = TypeVar("Result")

_ALLOW_LIST: Final = "EXPUNGE_ALLOWED_FACTORIES"
_MOST_CHARACTERS: Final = 16_000
_HERE: Final = Path(__file__).parents[3]
_INSTALLED: Final = Path(str(torch.__file__)).parents[1]
_OURS: Final = tuple(f"{_HERE / package}{os.sep}" for package in ("app", "workers"))
_LIBRARIES: Final = (f"{_INSTALLED / 'torch'}{os.sep}",)
_IMPORTING: Final = ("<frozen importlib", str(importlib.__file__))
_FOREIGN: Final = (*_OURS, *_LIBRARIES, *_IMPORTING)


def called(
    what: str,
    work: Callable[[], Result],
    *,
    in_full: bool = False,
    advice: str = "",
    on: type[BaseException] = BaseException,
) -> Result:
    """Return what the operator's code returns.

    Args:
        what: the code, as the beginning of a sentence.
        work: calls it.
        in_full: whether to show its exceptions completely; only before a record is read.
        advice: what to do about an exception of type ``on``.
        on: which exceptions the advice is about.

    Raises:
        RunFailedError: it raised. The message's first line has the type, the file and the line; in
            full, the traceback follows. Neither cause nor context is attached.
        ExpungeError: raised on purpose by our own code inside, or a refused write that the
            operator's code made something else of.
    """
    try:
        return work()
    except ExpungeError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - replaced, not swallowed
        refusal = refusal_behind(error)
        trace = error.__traceback__  # without frames at its beginning that are not the operator's
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_FOREIGN):
            trace = trace.tb_next
        error.with_traceback(trace)
        said = f"{what} raised {place_of(error)}"
        said += f": {advice}" if advice and isinstance(error, on) else ""
        if in_full:
            said += f"\n\n{text_of(error)}"
    # Outside the handler, so that Python attaches no context: it could quote what this must not.
    raise refusal or RunFailedError(said)


def imported(
    path: str, *, allowed: Sequence[str], what: str, in_full: bool = False
) -> Callable[..., Any]:
    """Return what an import path names.

    Args:
        path: ``package.module:name``.
        allowed: such paths, or ``package.module:*``.
        what: a factory or a task, for messages.
        in_full: as for ``called``.

    Raises:
        RunFailedError: it is not allowed, cannot be imported, or cannot be called.
    """
    package, _, attribute = path.partition(":")
    if not is_allowed(path, allowed):
        raise RunFailedError(
            f"the {what} {path!r} is not allowed on this worker: add it to {_ALLOW_LIST}"
        )
    importlib.invalidate_caches()  # a long-lived worker forked before the module was there
    module = called(
        f"importing {package!r}",
        lambda: importlib.import_module(package),
        in_full=in_full,
        advice="install it where workers run, or add its folder to PYTHONPATH there",
    )
    found = getattr(module, attribute, None)
    if not callable(found):
        raise RunFailedError(f"{package!r} has no function {attribute!r}: correct the {what}")
    return cast("Callable[..., Any]", found)


def place_of(error: BaseException) -> str:
    """Return an exception's type and line; if a library raised it, also the line that called it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_IMPORTING)
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_FOREIGN)]
    places = [*frames[-1:], *(own[-1:] if own[-1:] != frames[-1:] else [])]
    names = [f"{Path(frame.filename).name}, line {frame.lineno}" for frame in places]
    return " in ".join([type(error).__name__, *filter(None, [", called from ".join(names)])])


def text_of(error: BaseException) -> str:
    """Return the traceback, cut at its beginning, without what cannot be printed."""
    lines = traceback.TracebackException.from_exception(error, compact=True).format()
    text = "".join(
        letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1]
        for letter in "".join(lines).strip()
    )
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"…{text[-_MOST_CHARACTERS:]}"


def refusal_behind(error: BaseException) -> WriteRefusedError | None:
    """Return the refused write that an exception came of, without its frames, or None."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, WriteRefusedError):
        behind = behind.__cause__ or behind.__context__
    return None if behind is None else WriteRefusedError(str(behind))
