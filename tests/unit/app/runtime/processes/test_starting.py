"""While modules are loaded nothing is collected; afterwards all is as it was."""

import gc
from contextlib import suppress

import pytest

from app.runtime.processes.starting import uncollected


@pytest.fixture(autouse=True)
def _as_before():
    collects = gc.isenabled()
    yield
    gc.unfreeze()
    gc.enable() if collects else gc.disable()


def loaded(into, fails):
    assert not gc.isenabled()
    into.append({"a module": "its content"})
    if fails:
        raise ImportError


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_garbage_is_collected_again_if_it_was_and_what_was_loaded_is_passed_by(collects, fails):
    gc.enable() if collects else gc.disable()
    modules = []
    with suppress(ImportError), uncollected():
        loaded(modules, fails)
    assert gc.isenabled() == collects
    assert not any(each is modules[0] for each in gc.get_objects())
