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
    """Count whole systems as slow, and begin with what takes longest."""
    for item in items:
        if _tier(item) == "system" and item.get_closest_marker("nightly") is None:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: _TIERS.index(_tier(item)))


def _tier(item: pytest.Item) -> str:
    return item.path.relative_to(_TESTS).parts[0]
