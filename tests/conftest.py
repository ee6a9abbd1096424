"""The tiers: what counts as slow, and what comes first."""

import gc
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_TIERS = ("system", "integration", "unit")


def pytest_configure(config: pytest.Config) -> None:
    """Load what tests share, though not where they are only handed out to other processes."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("tests.support.fixtures")
        # What is collected stays to the end: looking for garbage in it is a quarter of the time.
        gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage in what the tests make alone."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set documents and the like apart, count systems as slow, begin with what takes longest."""
    for item in items:
        if any(map(item.get_closest_marker, ("slow", "nightly"))):
            continue
        if not {"docs", "deploy", "benchmarks"}.isdisjoint(_folders(item)):
            item.add_marker(pytest.mark.docs)
        elif _folders(item)[0] == "system":
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: _TIERS.index(_folders(item)[0]))


def _folders(item: pytest.Item) -> tuple[str, ...]:
    return item.path.relative_to(_TESTS).parts
