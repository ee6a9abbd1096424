"""The average of members' weights."""

import numpy as np
import torch

from workers.training.networks.merge import averaged


def test_it_is_the_mean_rounded_once() -> None:
    third = [{"weight": np.float32([value, 1.0])} for value in (0.1, 0.2, 0.7)]
    (found,) = averaged(third).values()
    exact = [np.float64(np.float32(value)) for value in (0.1, 0.2, 0.7)]
    assert found.dtype == torch.float32
    assert found.tolist() == [float(np.float32((exact[0] + exact[1] + exact[2]) / 3)), 1.0]


def test_small_types_do_not_lose_what_the_sum_needs() -> None:
    members = [{"weight": torch.full((2,), 60_000.0, dtype=torch.float16)} for _ in range(8)]
    assert averaged(members)["weight"].tolist() == [60_000.0, 60_000.0]
    assert averaged(members)["weight"].dtype == torch.float16


def test_whole_numbers_are_the_first_members() -> None:
    members = [{"count": torch.tensor(count)} for count in (7, 9)]
    assert averaged(members)["count"].item() == 7


def test_members_stay_as_they_were() -> None:
    members = [{"weight": torch.ones(2, dtype=torch.float64) * each} for each in (1, 3)]
    assert averaged(members)["weight"].tolist() == [2.0, 2.0]
    assert members[0]["weight"].tolist() == [1.0, 1.0]
