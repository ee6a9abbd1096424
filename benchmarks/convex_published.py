"""The ways to answer sequential requests as published, each by its own paper's bound."""

from functools import cache

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.histories.history import History
from app.accounting.published import chien, full_batch, neel
from app.domain.errors import CalibrationError, ParameterError
from benchmarks.calibration import calibrate, noise_std_of
from benchmarks.convex_case import Case
from benchmarks.convex_lineage import Plan
from benchmarks.convex_methods import PAPER_NOISE_SCALE, Planner, Target, fewest

RADIUS = 100.0  # Chien et al. 2024, N.4
PAPER_BATCH = 128


def projected_noisy_sgd_epochs(noise_scale: float) -> Planner:
    """Return the epochs that Theorem 3.11 asks for at this sigma, read as the authors' code does.

    That is the loose decay for the first request and the sharp one for all others.
    """

    def plan(case: Case, history: History, earlier: tuple[int, ...], target: Target) -> Plan:
        recipe = history.recipe
        before = [steps // recipe.batches for steps in earlier]

        def account(steps: int) -> RenyiGuarantee:
            return chien.theorem_3_11(
                **_setting(case, recipe.batch_size),
                noise_scale=noise_scale,
                epochs=[*before, steps // recipe.batches],
                sharp=bool(before),
            )

        epochs = fewest(
            lambda count: (
                count > 0
                and account(count * recipe.batches).meets(
                    epsilon=target.epsilon, delta=target.delta
                )
            )
        )
        return Plan(steps=epochs * recipe.batches, account=account)

    return plan


def projected_noisy_sgd_one_epoch(
    case: Case, history: History, earlier: tuple[int, ...], target: Target
) -> Plan:
    """Return one epoch a request, at the sigma of ``one_epoch_noise_scale``."""
    scale = one_epoch_noise_scale(case, target, history.recipe.batch_size)
    return projected_noisy_sgd_epochs(scale)(case, history, earlier, target)


@cache
def one_epoch_noise_scale(case: Case, target: Target, batch_size: int = PAPER_BATCH) -> float:
    """Return the smallest sigma with which one epoch is enough for the first request of many.

    The first, counted loosely, needs the most.
    """
    setting = _setting(case, batch_size)
    wanted = {"epsilon": target.epsilon, "delta": target.delta}
    first = calibrate(chien.theorem_3_11, **wanted, **setting, epochs=[1])
    later = calibrate(chien.theorem_3_11, **wanted, **setting, epochs=[1] * 100, sharp=True)
    return max(first, later) * (1 + 1e-9)


def langevin(case: Case, history: History, _: tuple[int, ...], target: Target) -> Plan:
    """Return the steps of Theorems P.1 and P.2, all records counted as present until now."""

    def account(steps: int) -> RenyiGuarantee:
        recipe = history.recipe
        return full_batch.chien_theorem_p_2(
            learning_rate=recipe.learning_rate,
            weight_decay=case.weight_decay,
            smoothness=case.smoothness,
            lipschitz=case.lipschitz,
            records=case.records,
            noise_scale=PAPER_NOISE_SCALE,
            steps=steps,
            forgotten=history.forgotten(),
        )

    steps = fewest(lambda count: account(count).meets(epsilon=target.epsilon, delta=target.delta))
    return Plan(steps=steps, account=account)


def delete_to_descent(case: Case, _: History, earlier: tuple[int, ...], target: Target) -> Plan:
    """Return the fewest steps that Theorem 28 allows, and its noise for them."""
    setting = {
        "delta": target.delta,
        "weight_decay": case.weight_decay,
        "smoothness": case.smoothness,
        "lipschitz": case.lipschitz,
        "records": case.records,
        "dimension": case.train.inputs.shape[1],
        "request": len(earlier) + 1,
    }

    def noise(steps: int) -> float | None:
        try:
            return calibrate(neel.theorem_28, epsilon=target.epsilon, steps=steps, **setting)
        except (CalibrationError, ParameterError):  # too few steps for the theorem
            return None

    steps = fewest(lambda count: count > 0 and noise(count) is not None)
    noise_std = (noise(steps) or 0.0) * (1 + 1e-9)
    return Plan(
        steps=steps,
        release_noise_std=noise_std,
        account=lambda taken: neel.theorem_28(noise_std=noise_std, steps=taken, **setting),
    )


def step_noise_std(case: Case, noise_scale: float) -> float:
    """Return sqrt(2 eta) sigma at the papers' step size."""
    step = 1 / (case.smoothness + case.weight_decay)
    return noise_std_of(learning_rate=step, noise_scale=noise_scale)


def _setting(case: Case, batch_size: int) -> dict[str, float]:
    return {
        "learning_rate": 1 / (case.smoothness + case.weight_decay),
        "weight_decay": case.weight_decay,
        "smoothness": case.smoothness,
        "lipschitz": case.lipschitz,
        "batch_size": batch_size,
        "records": case.records,
        "radius": RADIUS,
    }
