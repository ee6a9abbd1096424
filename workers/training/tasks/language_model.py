"""Language models: the next token at every place of a text."""

from typing import Final

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from app.domain.tasks.built_in import LanguageModelSpec
from workers.training.tasks.augmented import Augmented
from workers.training.tasks.task import INPUTS, Arrays, Batch, Forward, weighted

_IGNORED: Final = -100


class LanguageModel(Augmented[LanguageModelSpec]):
    """Cross-entropy of each next token, averaged over a record's tokens: int64 [n, places].

    A record's loss is the mean over its own tokens, so that long texts count no more than short
    ones. Padding comes after a text and is never predicted; whether the network attends to it is
    the network's to say: a causal one cannot.
    """

    headline = "perplexity"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's mean cross-entropy in nats, [n]; 0 where nothing is predicted."""
        losses, predicted = self._losses(module, batch)
        return weighted(losses.sum(dim=1) / predicted.sum(dim=1).clamp(min=1), batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``next_token`` [n], and of the text ``log_likelihood`` and ``tokens`` [n]."""
        logits = module(batch[INPUTS])
        losses, predicted = self._losses(lambda _: logits, batch)
        last = (batch[INPUTS] != self.spec.padding).sum(dim=1).clamp(min=1) - 1
        return {
            "next_token": logits[torch.arange(len(logits)), last].argmax(dim=1),
            "log_likelihood": -losses.sum(dim=1),
            "tokens": predicted.sum(dim=1),
        }

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:  # noqa: ARG002
        """Return perplexity over all tokens, if there is one; the text is its own target."""
        tokens = int(predictions["tokens"].sum())
        if not tokens:
            return {}
        mean = -float(predictions["log_likelihood"].astype(np.float64).sum()) / tokens
        return {"perplexity": float(np.exp(min(mean, 700.0)))}

    def truth(self, batch: Batch) -> Batch:
        """Return how often each token is to be predicted, [1, vocabulary]: texts may be long."""
        following = batch[INPUTS][:, 1:]
        counts = torch.bincount(
            following[following != self.spec.padding], minlength=self.spec.vocabulary
        )
        return {"counts": counts[None]}

    def baseline(self, batch: Arrays) -> float | None:
        """Return the perplexity of the tokens' frequencies, each counted once more.

        Without that, the frequencies of a short text would be a model of that text.
        """
        counts = batch["counts"].sum(axis=0)
        tokens = counts.sum()
        if not tokens:
            return None
        shares = (counts + 1) / (tokens + len(counts))
        return float(np.exp(-(counts * np.log(shares)).sum() / tokens))

    def _losses(self, module: Forward, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each place but the last, and which of them are predicted."""
        inputs = batch[INPUTS]
        logits, following = module(inputs)[:, :-1], inputs[:, 1:]
        predicted = following != self.spec.padding
        target = following.masked_fill(~predicted, _IGNORED)
        losses = cross_entropy(
            logits.transpose(1, 2), target, reduction="none", ignore_index=_IGNORED
        )
        return losses, predicted
