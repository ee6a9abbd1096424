"""Small networks for tests of what becomes of any network."""

from torch import nn


class Computing(nn.Module):
    """Layers by their names, and a function of the network and its inputs."""

    def __init__(self, compute, **layers):
        super().__init__()
        self.compute = compute
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, inputs):
        return self.compute(self, inputs)


class Tied(nn.Module):
    """Two layers with one weight, below a head."""

    def __init__(self, *, normalised=False):
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.other.weight = self.one.weight
        self.norm, self.head = nn.BatchNorm1d(6) if normalised else None, nn.Linear(6, 2)

    def forward(self, features):
        hidden = self.other(self.one(features).relu())
        return self.head(hidden if self.norm is None else self.norm(hidden))
