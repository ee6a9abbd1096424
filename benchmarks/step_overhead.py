"""What a noisy step costs beside a plain one: ``python -m benchmarks.step_overhead``.

One network of about a million parameters on 32 x 32 x 3 images, batches of 128. The variants take
turns within one run, so a machine that slows down slows all of them. Every variant does the same
forward and backward pass. The target: at most 1.15 times a plain SGD step with ordinary noise.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch.nn.functional import cross_entropy

from app.domain.architecture import ArchitectureSpec
from workers.mechanisms.frame import ReferenceFrame
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.mechanisms.model_clipping import ModelClipping
from workers.noise import NoiseSource, SecureNoise
from workers.training.architectures import build
from workers.training.device import choose_device
from workers.training.network import Network

ROUNDS = 12
LIMIT = 1.15
RESULTS = Path(__file__).parent / "results" / "step_overhead.json"
_ARCHITECTURE = ArchitectureSpec("cnn", {"channels": [64, 128, 256, 256]})
_TARGET = {"epsilon": 1.0, "delta": 1e-5}


class OrdinaryNoise:
    """torch.randn, for comparison; it certifies nothing."""

    name = "torch.randn"

    def normal_(self, out: torch.Tensor) -> None:
        """Fill ``out`` with N(0, 1)."""
        torch.randn(out.shape, out=out)


def _module() -> torch.nn.Module:
    return build(_ARCHITECTURE, input_shape=(3, 32, 32), classes=10, allowed_factories=())


def _rules() -> dict[str, GradientClipping | ModelClipping]:
    return {
        "gradient_clipping": GradientClipping(1.0, 1.0, 0.1, 1.0, 10.0, 10_000),
        "model_clipping": ModelClipping(1.0, 1.0, 0.0, 0.5, 1.0, 10_000, 0.1, 0.0),
    }


class Bench:
    """The network, one batch, and the variants of a step on it."""

    def __init__(self) -> None:
        self._device = choose_device()
        self.network = Network(_module, device=self._device)
        flat = self.network.flat
        self._frame = ReferenceFrame.of(_module).on(flat.shapes, flat.device)
        self._images = torch.rand(128, 3, 32, 32, device=self._device)
        self._labels = torch.randint(10, (128,), device=self._device)
        flat.attach_gradients()

    def plain(self) -> Callable[[], None]:
        """Return a plain SGD step with ordinary noise."""
        flat, noise = self.network.flat, OrdinaryNoise()

        def step() -> None:
            self._backward()
            flat.values.sub_(flat.gradients, alpha=1e-4)
            noise.normal_(flat.gradients)
            flat.values.add_(flat.gradients, alpha=1e-6)

        return step

    def noisy(
        self, rule: GradientClipping | ModelClipping, noise: NoiseSource
    ) -> Callable[[], None]:
        """Return a step of a mechanism."""
        flat = self.network.flat
        position = self._frame.position_of(flat.values)
        run = rule.begin(position, noise=noise, **_TARGET)

        def step() -> None:
            self._backward()
            run.step(position, self._frame.pull_back_(flat.gradients))
            self._frame.weights_at(position, out=flat.values)

        return step

    def noise_alone(self, noise: NoiseSource) -> Callable[[], None]:
        """Return the making of one step's noise and nothing else."""
        scratch = torch.empty_like(self.network.flat.values)
        return lambda: noise.normal_(scratch)

    def timed(self, step: Callable[[], None]) -> float:
        """Return the seconds of one call."""
        self._wait()
        started = time.perf_counter()
        step()
        self._wait()
        return time.perf_counter() - started

    def _backward(self) -> None:
        self.network.flat.gradients.zero_()
        loss = cross_entropy(self.network.module(self._images), self._labels)
        loss.backward()  # type: ignore[no-untyped-call]

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def main() -> None:
    """Measure, print and write the ratios."""
    bench = Bench()
    variants = {"plain": bench.plain()}
    for name, rule in _rules().items():
        variants[f"{name}, ordinary noise"] = bench.noisy(rule, OrdinaryNoise())
        variants[f"{name}, secure noise"] = bench.noisy(rule, SecureNoise())
    variants["secure noise alone"] = bench.noise_alone(SecureNoise())
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(ROUNDS + 2):
        for name, step in variants.items():
            taken = bench.timed(step)
            if round_ >= 2:  # the first rounds warm up
                seconds[name].append(taken)
    plain = seconds["plain"]
    result = {
        name: {
            "milliseconds": 1000 * median(taken),
            "ratio_to_plain": median(a / b for a, b in zip(taken, plain, strict=True)),
        }
        for name, taken in seconds.items()
    }
    parameters = bench.network.flat.size
    print(f"{parameters:,} parameters on {bench.network.flat.device}, {ROUNDS} rounds")
    for name, figures in result.items():
        print(f"{name:<36} {figures['milliseconds']:8.1f} ms   {figures['ratio_to_plain']:.3f}")
    print(f"limit for a mechanism with ordinary noise: {LIMIT}")
    document = {"parameters": parameters, "device": str(bench.network.flat.device), **result}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
