"""The API killed while it certifies a request at once: nothing is lost or done twice."""

import httpx
import pytest

from app.client import ApiError
from tests.support.digits import head
from tests.support.patience import PATIENCE_S, until

NOISE = {"mechanism": "tracked_release", "epsilon": 50.0, "parameters": {"noise_std": 20.0}}


@pytest.mark.parametrize("point", ["at_once", "before_answer_commit"])
def test_killed_while_a_request_is_certified(point, client, points, others, traces):
    name = f"{point}-head".replace("_", "-")
    client.define_model({**head(name, first_release="certify", **NOISE), "dataset": "others"})
    client.wait_for_model(name, timeout_s=PATIENCE_S)
    number = ["at_once", "before_answer_commit"].index(point)
    traces.forgotten(others, number)
    points.arm(point, "SIGKILL")
    ids = {"subject_ids": [others.subject(number)], "external_id": point}
    request = until(lambda: _asked(client, ids))
    assert points.waiting() == []

    (mine,) = (o for o in request["obligations"] if o["model"] == name)
    assert (mine["state"], mine["run"]) == ("certified", None)
    assert client.certified(name)["number"] == 1
    until(lambda: client.request(request["id"])["state"] == "completed")
    assert client.forget("others", **ids)["id"] == request["id"]


def _asked(client, ids):
    """Ask, again and again under one name, until there is an answer."""
    try:
        return client.forget("others", **ids)
    except (httpx.TransportError, ApiError):
        return None
