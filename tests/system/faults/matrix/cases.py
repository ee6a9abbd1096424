"""What the cases of the matrix are made of."""

from tests.support.digits import RECIPE, model
from tests.support.slow import FACTORY

MODEL = "matrix"
# Ten noisy steps, one an epoch, and ten of fine-tuning.
DEFINITION = {
    **model(MODEL, parameters={"steps": 10}, budget_epochs=20, first_release="as_trained"),
    "architecture": {"name": "custom", "factory": FACTORY},
    "recipe": {**RECIPE, "batch_size": 1000},
}


def lost_its_lease(service, client):
    """Say whether a worker has found the newest run to be somebody else's."""
    run = client.model(MODEL)["latest_run"]["id"]
    return f"run {run}: the lease was lost" in service.log.read_text()
