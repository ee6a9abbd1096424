"""Releases without a service, and targets that are interrupted at every step."""

from collections.abc import Callable, Iterable
from hashlib import sha256

from app.delivery.publishing.target import Subject, Target
from app.domain.release import CARD, CERTIFICATE, CONFIG, WEIGHTS, Release

SUBJECT = Subject("model_1", "digits")
OTHER = Subject("model_2", "digits")
Seen = dict[str, bytes]


class KilledError(Exception):
    """Where a process would have been killed."""


def release(number: int, *, certificate: int = 0) -> Release:
    """Return a release of 70,000 bytes."""
    content = f"weights of version {number}".encode() * 2800
    return Release(
        version_id=f"ver_{number}",
        number=number,
        certificate_id=f"cert_{number}_{certificate}",
        sha256=sha256(content).hexdigest(),
        size_bytes=len(content),
        epsilon=1.0,
        delta=1e-5,
        files={
            name: f"{name} {number} {certificate}".encode() for name in (CARD, CERTIFICATE, CONFIG)
        },
        weights=lambda: _parts(content),
    )


def files_of(wanted: Release | None) -> Seen:
    """Return all that should be there."""
    if wanted is None:
        return {}
    return {**wanted.files, WEIGHTS: b"".join(wanted.weights())}


def hold(target: Target, wanted: Release | None, subject: Subject = SUBJECT) -> list[str]:
    """Bring a target to hold a release; return the steps."""
    steps: list[str] = []
    target.hold(subject, wanted, steps.append)
    return steps


def check_interrupted_everywhere(
    fresh: Callable[[], tuple[Target, Callable[[], Seen]]], *, all_ends: bool = True
) -> None:
    """Interrupt every change at every step, let it go on to the same or to another end.

    Without ``all_ends`` every other step goes on to each of the other ends.
    """
    changes: list[tuple[Release | None, Release | None]] = [
        (None, release(1)),
        (release(1), release(2)),
        (release(1), release(1, certificate=1)),
        (release(2), None),
    ]
    for before, after in changes:
        point = 0
        while _goes_on(fresh, before, after, point, end=after):
            for end in (release(3), None) if all_ends else ((release(3), None)[point % 2],):
                _goes_on(fresh, before, after, point, end=end)
            point += 1
        assert point, "no step was interrupted"


def _goes_on(
    fresh: Callable[[], tuple[Target, Callable[[], Seen]]],
    before: Release | None,
    after: Release | None,
    point: int,
    *,
    end: Release | None,
) -> bool:
    """Interrupt a change, if it has so many steps, and check what becomes of it."""
    target, seen = fresh()
    hold(target, before)
    assert seen() == files_of(before)
    interrupted = _is_interrupted(target, after, point)
    if interrupted:
        hold(target, end)
        assert seen() == files_of(end), (before, after, end, point)
    hold(target, None)
    assert seen() == {}
    return interrupted


def _is_interrupted(target: Target, wanted: Release | None, point: int) -> bool:
    passed = 0

    def step(_: str) -> None:
        nonlocal passed
        if passed == point:
            raise KilledError
        passed += 1

    try:
        target.hold(SUBJECT, wanted, step)
    except KilledError:
        return True
    return False


def broken(wanted: Release) -> Release:
    """Return a release whose weights break off half-way."""

    def weights() -> Iterable[bytes]:
        yield next(iter(wanted.weights()))
        raise KilledError

    return Release(**{**vars(wanted), "weights": weights})


def _parts(content: bytes) -> Iterable[bytes]:
    half = len(content) // 2
    yield content[:half]
    yield content[half:]
