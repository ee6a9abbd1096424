"""Progress bars on standard error; standard output is for answers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def run_progress() -> Iterator[Callable[[Mapping[str, Any] | None, str], None]]:
    """Show a bar; yield a function to call with the run and the overall state."""
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("waiting", total=None, note="")

        def update(run: Mapping[str, Any] | None, state: str) -> None:
            if run is None:
                progress.update(task, description=state)
                return
            progress.update(
                task,
                description=f"{state}: {run['phase'] or run['state']}",
                completed=run["step"] or 0,
                total=run["total_steps"],
                note=_note(run),
            )

        yield update


@contextmanager
def rows_progress(rows: int, *, parts: int) -> Iterator[Callable[[int], None]]:
    """Show a bar for an upload of several parts; yield a function to call with rows sent."""
    if parts == 1:
        yield lambda _: None
        return
    columns = (TextColumn("pushing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("pushing", total=rows)
        yield lambda sent: progress.advance(task, sent)


@contextmanager
def import_progress() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show a bar; yield a function to call with the import."""
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("queued", total=None)

        def update(found: Mapping[str, Any]) -> None:
            progress.update(
                task,
                description=found["state"],
                completed=found["rows"],
                total=found["total_rows"],
            )

        yield update


def _note(run: Mapping[str, Any]) -> str:
    """Describe the known progress; a model released without noise has no epsilon."""
    known = [name for name in ("epsilon", "loss") if run[name] is not None]
    return ", ".join(f"{name} {run[name]:.4g}" for name in known)
