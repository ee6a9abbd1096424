"""An ensemble is measured with fewer of its members, too, of which none computes a batch twice."""

import torch
from torch import nn

from app.domain.schema import InputSchema
from tests.support.specs import classification
from workers.training.evaluate import EVALUATION_BATCH, Evaluation, evaluate
from workers.training.examples import Examples
from workers.training.networks.ensemble import Ensemble
from workers.training.tasks.catalogue import form_of, task_of

SPEC = classification(2, InputSchema(shape=(8,), classes=2))
RECORDS = EVALUATION_BATCH + 10


class Counting(nn.Module):
    """Says something of a record, and counts the records."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 2))
        self.seen = 0

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        self.seen += len(records)
        return records @ self.weight


def test_fewer_members_are_measured_as_ensembles_of_their_own() -> None:
    torch.manual_seed(0)
    task = task_of(SPEC)
    examples = Examples.random(form_of(SPEC, task, SPEC.schema()), RECORDS)
    whole = Ensemble([Counting() for _ in range(8)], SPEC)
    members = [*whole.members.values()]

    def alone(count: int) -> Evaluation:
        return evaluate(Ensemble(members[:count], SPEC), task, examples)

    found = evaluate(whole, task, examples, (6, 4))

    assert [each.seen for each in members] == [RECORDS] * 8
    assert found.fewer == {6: alone(6).score, 4: alone(4).score}
    assert len({found.score, *found.fewer.values()}) == 3
    assert (found.metrics, found.mean_loss) == (alone(8).metrics, alone(8).mean_loss)
    records, seen = torch.zeros(3, 8), members[0].seen
    assert torch.equal(members[0](records), members[0](records))
    assert members[0].seen == seen + 6  # nothing is remembered any more
