"""``docs/access.md`` names every scope, setting and public endpoint there is."""

import re
from pathlib import Path

from app.domain.states import Scope
from app.runtime.settings import Settings

PAGE = Path("docs/access.md").read_text()


def test_every_scope_has_its_row() -> None:
    assert re.findall(r"^\* `([a-z:]+)`:", PAGE, re.MULTILINE) == list(Scope)


def test_every_setting_of_access_is_explained_with_its_default() -> None:
    ours = [
        name
        for name in Settings.model_fields
        if name.startswith(("oidc_", "requests_", "failed_", "trusted_"))
    ]
    assert len(ours) == 8
    for name in ours:
        assert f"EXPUNGE_{name.upper()}" in PAGE, name
    for name in ("requests_per_minute", "requests_burst", "failed_attempts_per_minute"):
        row = re.search(rf"^\* `EXPUNGE_{name.upper()}`: .*$", PAGE, re.MULTILINE)
        assert row is not None
        assert f"(default {Settings.model_fields[name].default}" in row[0]
