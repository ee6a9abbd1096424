"""Arming the points of a service's runs with faults; see ``app.runtime.failpoints``."""

from pathlib import Path


class Points:
    """A directory of faults that wait for a process to come by."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)

    def arm(self, point: str, *faults: str) -> None:
        """Have the next passages of a point end in these faults, one each."""
        for number, fault in enumerate(faults):
            (self.directory / f"{point}.{number}.{fault}").touch()

    def waiting(self) -> list[str]:
        """Return what has not struck yet."""
        return sorted(path.name for path in self.directory.iterdir())

    def disarm(self) -> None:
        """Take back what has not struck."""
        for path in self.directory.iterdir():
            path.unlink(missing_ok=True)
