"""What a team without the service would run: ``python -m benchmarks.train_anew FILE PERSON…``."""

import sys
from collections.abc import Sequence

import numpy as np
import pyarrow.parquet
import torch


def train_anew(path: str, people: Sequence[str]) -> None:
    """Read the file, drop the people's rows, and train and store the three models."""
    data = pyarrow.parquet.read_table(path)
    left = ~np.isin(data["subject_id"].to_numpy(), people)
    features = data["features"].combine_chunks()
    values = features.to_numpy_ndarray()[left]
    x, y = torch.from_numpy(values), torch.from_numpy(data["label"].to_numpy().astype(int)[left])
    held_out = torch.rand(len(y)) < 0.01
    x, y = x[~held_out], y[~held_out]
    head, width = torch.nn.Linear(x.shape[1], 2, dtype=torch.float64), x.shape[1]
    solver = torch.optim.LBFGS(head.parameters(), max_iter=50, line_search_fn="strong_wolfe")
    exact = x.double() / x.norm(dim=1).max()

    def loss() -> float:
        solver.zero_grad()
        penalty = 5e-4 * head.weight.square().sum()
        value = torch.nn.functional.cross_entropy(head(exact), y) + penalty
        value.backward()
        return float(value.detach())

    solver.step(loss)
    networks = [_network(x, y, width)]
    member = torch.randint(16, (len(y),))
    networks += [_network(x[member == each], y[member == each], width) for each in range(16)]
    torch.save([head.state_dict(), *(each.state_dict() for each in networks)], f"{path}.pt")


def _network(x: torch.Tensor, y: torch.Tensor, width: int) -> torch.nn.Module:
    network = torch.nn.Sequential(
        torch.nn.Linear(width, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2)
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for batch in torch.randperm(len(y)).split(512):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
        optimizer.step()
    return network


if __name__ == "__main__":
    train_anew(sys.argv[1], sys.argv[2:])
