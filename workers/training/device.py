"""The device of a worker. Nothing here runs at import: only the child process may use CUDA."""

import torch


def choose_device() -> torch.device:
    """Return the first CUDA device if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
