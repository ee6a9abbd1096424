"""Progress bars on standard error; standard output is for answers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)


@contextmanager
def _bar(*columns: ProgressColumn, **task: Any) -> Iterator[Callable[..., None]]:  # noqa: ANN401
    """Show a bar; yield what changes its fields."""
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        yield partial(progress.update, progress.add_task(**task))


@contextmanager
def run_progress() -> Iterator[Callable[[Mapping[str, Any] | None, str], None]]:
    """Show a bar; yield a function to call with the run and the overall state."""
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with _bar(*columns, description="waiting", total=None, note="") as change:

        def update(run: Mapping[str, Any] | None, state: str) -> None:
            if run is None:
                change(description=state)
                return
            change(
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
    columns = (TextColumn("pushing"), BarColumn(), MofNCompleteColumn())
    with _bar(*columns, description="pushing", total=rows) as change:
        yield lambda sent: change(advance=sent)


@contextmanager
def import_progress() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show a bar; yield a function to call with the import."""
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn())
    with _bar(*columns, description="queued", total=None) as change:
        yield lambda found: change(
            description=found["state"], completed=found["rows"], total=found["total_rows"]
        )


def _note(run: Mapping[str, Any]) -> str:
    """Describe the known progress; a model released without noise has no epsilon."""
    known = [name for name in ("epsilon", "loss") if run[name] is not None]
    return ", ".join(f"{name} {run[name]:.4g}" for name in known)
