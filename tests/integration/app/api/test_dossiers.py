"""``POST /v1/dossiers``: who may ask for which."""

import pytest

from app.domain.states import Scope
from tests.integration.app.api.conftest import CallerOf
from tests.support.workshop import DATASET, Workshop

BODY = {"kind": "dataset", "name": DATASET}
READERS = (Scope.LOG_READ, Scope.MODELS_READ, Scope.FORGET_READ)


@pytest.mark.parametrize("missing", READERS)
def test_a_key_that_may_not_read_gets_none(
    workshop: Workshop, caller_of: CallerOf, missing: Scope
) -> None:
    api = caller_of(*(scope for scope in READERS if scope is not missing))
    assert api.post("/v1/dossiers", json=BODY).status_code == 403


def test_a_key_that_may_read_needs_no_other(workshop: Workshop, caller_of: CallerOf) -> None:
    api = caller_of(*READERS)
    assert set(api.post("/v1/dossiers", json=BODY).json()["files"]) >= {"answers.html"}
    assert api.post("/v1/dossiers", json={**BODY, "name": "nobody"}).status_code == 404
    for path in ("../x", "log/1.json", "receipts/"):
        body = {**BODY, "given": {path: "00" * 32}}
        assert api.post("/v1/dossiers", json=body).status_code == 422
