"""A LightningModule: the network moves to a function, all else stays where it is."""

import warnings
from typing import Any

import lightning
import numpy as np
import torch
from certified import forgotten, published, trained
from digits_network import build
from digits_table import COLUMNS, IDS, SHAPE, TASK, digits
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    """What there was, but that the network comes from ``digits_network.build``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network = build(input_shape=SHAPE, classes=10, width=width)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.network(pictures)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Stays for experiments; the service trains by its recipe."""
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Stays."""
        right = (self(batch[0]).argmax(dim=1) == batch[1]).float().mean()
        self.log("accuracy", right)

    def predict_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Stays."""
        return self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Becomes optimizer, learning_rate and weight_decay of the recipe."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=1e-4)


warnings.filterwarnings("ignore", module="lightning")
frame = digits()
pictures = torch.from_numpy(np.stack(frame["picture"])).reshape(-1, *SHAPE)
rows = DataLoader(TensorDataset(pictures, torch.tensor(frame["digit"].to_numpy())), 599)
quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}

module = Digits(width=16)
FACTORY = "digits_network:build"
client = trained(
    frame,
    {
        "name": "digits-lightning",
        "dataset": "lightning",
        "task": TASK,
        "architecture": {"name": "custom", "factory": FACTORY, "options": {"width": 16}},
        "recipe": {
            "optimizer": "adamw",
            "learning_rate": 3e-3,
            "weight_decay": 1e-4,
            "epochs": 8,
            "batch_size": 64,
            "held_out_fraction": 0,
        },
        "policy": {"mechanism": "retraining"},
    },
    COLUMNS,
    **IDS,
)
forgotten(client, "lightning", subject_ids=["writer-3"])

weights, model = published(client, "digits-lightning", FACTORY)
module.network.load_state_dict(load_file(weights))
trainer = lightning.Trainer(**quiet, enable_model_summary=False, enable_checkpointing=False)
[figures] = trainer.test(module, rows, verbose=False)
own = torch.cat(trainer.predict(module, rows))
expected = model.outputs_of(pictures)
torch.testing.assert_close(own, expected)
assert torch.equal(own.argmax(dim=1), expected.argmax(dim=1))
assert figures["accuracy"] > 0.5, figures
print(f"Lightning: {figures['accuracy']:.1%} of the digits right")
