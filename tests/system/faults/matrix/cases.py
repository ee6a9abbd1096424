"""What the cases of the matrix are made of."""

from sqlalchemy import select

from app.registry import repository as registry
from app.registry.datasets.tables import RecordRow
from app.registry.membership import membership_of
from tests.support.digits import RECIPE, RECORDS_PER_SUBJECT, model
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


def learned_by_member(service, name, *, members, each=RECORDS_PER_SUBJECT):
    """Return the numbers of the subjects that each member of an ensemble has learned from."""
    learned = {member: set() for member in range(members)}
    with service.database() as database, database.transaction() as session:
        ensemble = registry.model_named(session, name)
        membership = membership_of(ensemble)
        of_dataset = select(RecordRow).where(RecordRow.dataset_id == ensemble.dataset_id)
        for number, row in enumerate(session.scalars(of_dataset.order_by(RecordRow.seq))):
            if membership.touched_by(row):
                member = membership.member_of(row)
                learned[member].add(number // each)
    return learned
