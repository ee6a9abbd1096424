"""Which device a worker computes on. Nothing here runs at import: CUDA belongs to the child."""

import torch


def choose_device() -> torch.device:
    """Return the first CUDA device if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
