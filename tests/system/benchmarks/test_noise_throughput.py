"""The comparison of noise measures what it says: both sources, one vector, numbers per second."""

import pytest
import torch

from benchmarks import noise_throughput
from workers.noise.generators import SecureNoise


def test_both_sources_add_to_the_same_vector_in_turn(monkeypatch):
    filled = []

    def seconds(source, position):
        vector = (position.data_ptr(), position.dtype, position.numel())
        filled.append((source.name, vector))
        return {"torch.randn": 0.5}.get(source.name, 2.0)

    monkeypatch.setattr(noise_throughput, "_seconds", seconds)
    measured = noise_throughput.measure(torch.device("cpu"), size=1000, rounds=2)
    assert [name for name, _ in filled] == ["torch.randn", SecureNoise().name] * 3
    ((_, dtype, size),) = {vector for _, vector in filled}
    assert (dtype, size) == (torch.float64, 1000)
    assert measured["numbers_per_second"] == {"torch.randn": 2000, SecureNoise().name: 500}
    assert measured["ratio"] == pytest.approx(0.25)
