"""Write handwritten digits as JPEG files in a table, and a public network's weights.

    python examples/pictures/data.py digits.parquet public.safetensors

The public network has learned from the second half of the digits that scikit-learn brings; the
table has the first half.
"""

import io
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

SIDE = 16


def network() -> nn.Module:
    """Return the architecture ``cnn`` of Expunge with 8 and 16 channels."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding="same"),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3, padding="same"),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def jpeg(pixels: np.ndarray) -> bytes:
    """Return a digit of 8 by 8 pixels as a JPEG file."""
    file = io.BytesIO()
    Image.fromarray((pixels * 15.9).astype(np.uint8)).resize((SIDE, SIDE)).save(file, "JPEG")
    return file.getvalue()


if __name__ == "__main__":
    digits = load_digits()
    files, half = [jpeg(each) for each in digits.images], len(digits.images) // 2
    table = {
        "picture": [f"p-{row}" for row in range(half)],
        "writer": [f"writer {row // 6}" for row in range(half)],
        "jpeg": files[:half],
        "digit": digits.target[:half],
    }
    pq.write_table(pa.table(table), sys.argv[1])

    torch.manual_seed(0)
    public = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files[half:]])
    images = torch.from_numpy(public)[:, None] / 255
    labels = torch.from_numpy(digits.target[half:])
    module = network()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(40):
        for some in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(images[some]), labels[some]).backward()
            optimizer.step()
    safetensors.torch.save_file(module.state_dict(), sys.argv[2])
