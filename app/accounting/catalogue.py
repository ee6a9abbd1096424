"""The papers' own bounds, and numbers that are no guarantees by themselves, by name (for the CLI).

All raise ``ParameterError`` for a number out of its range, or a schedule of another length.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Strict, ValidationError, validate_call

from app.accounting import gaussian, model_clipping
from app.accounting.chains import minorant, noisy_chain
from app.accounting.chains.noisy_chain import NoisyStep
from app.accounting.chains.reflection import apart_after
from app.accounting.guarantees import Guarantee
from app.accounting.histories import history_account
from app.accounting.histories.history import History, Recipe
from app.accounting.published import chien, full_batch, koloskova, neel
from app.accounting.terms import Neighbours
from app.domain.checks import require_steps
from app.domain.errors import NotFoundError, ParameterError
from app.domain.schedules import Schedule


def chain_mu(
    *,
    start_distance: float,
    contraction: Schedule,
    shift: Schedule,
    noise_std: Schedule,
    steps: int,
) -> float:
    """Return mu of a noisy chain, the same maps in both worlds (docs/guarantees.md, section 2)."""
    chain = noisy_chain.NoisyChain(start_distance=start_distance)
    for rate, moved, noise in _steps(contraction, shift, noise_std, steps):
        noisy_chain.check_step(contraction=rate, shift=moved, noise_std=noise)
        chain.step(rate, moved, noise)
    return chain.certified_mu()


def reflection_delta(
    *,
    start_distance: float,
    contraction: Schedule,
    shift: Schedule,
    noise_std: Schedule,
    steps: int,
    epsilon: float = 0.0,
) -> float:
    """Return delta, at 0 the total variation, by the coupling of docs/guarantees.md, 3.2."""
    numbers = _steps(contraction, shift, noise_std, steps)
    run = tuple((NoisyStep(*step), 1) for step in numbers)
    return apart_after(start_distance, run).delta(epsilon=epsilon)


def present_mu(
    *,
    contraction: Schedule,
    shift: Schedule,
    noise_std: Schedule,
    steps: int,
    start_distance: float = 0.0,
) -> float:
    """Return mu for records still present, whose maps differ (docs/guarantees.md, section 2.4)."""
    contractions, shifts, noise_stds = zip(
        *_steps(contraction, shift, noise_std, steps), strict=True
    )
    return minorant.minorant_mu(
        start_distance=start_distance,
        contractions=contractions,
        shifts=shifts,
        noise_stds=noise_stds,
    )


def worst_case_drift(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    batch_size: int,
    batches: int,
    neighbours: Annotated[Neighbours, Strict(strict=False)] = Neighbours.ZERO_OUT,
    records: int = 1,
) -> float:
    """Return Z, the drift of records at the worst position (docs/guarantees.md, section 6)."""
    recipe = Recipe(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        lipschitz=lipschitz,
        batch_size=batch_size,
        batches=batches,
        neighbours=neighbours,
    )
    return history_account.worst_case_drift(recipe=recipe, records=records)


def history_drift(*, history: Mapping[str, object]) -> float:
    """Return how far apart the worlds of a lineage's history are while they share their noise."""
    return history_account.drift(History.from_json(history))


QUANTITIES: Mapping[str, Callable[..., float]] = {
    "gaussian_mu": gaussian.mu_of,
    "gaussian_epsilon": gaussian.epsilon_of,
    "gaussian_delta": gaussian.delta_of,
    "chain_mu": chain_mu,
    "reflection_delta": reflection_delta,
    "present_mu": present_mu,
    "worst_case_drift": worst_case_drift,
    "history_drift": history_drift,
    "model_clipping_steps": model_clipping.steps_needed,
}
"""What ``expunge account`` can compute beside the guarantees of bounds and mechanisms."""


def _steps(
    contraction: Schedule, shift: Schedule, noise_std: Schedule, steps: int
) -> list[tuple[float, float, float]]:
    """Return (contraction, shift, noise_std) of each step."""
    columns = (
        _column("contraction", contraction, steps),
        _column("shift", shift, steps),
        _column("noise_std", noise_std, steps),
    )
    return list(zip(*columns, strict=True))


def _column(name: str, schedule: Schedule, steps: int) -> list[float]:
    require_steps("steps", steps)
    if isinstance(schedule, int | float):
        return [float(schedule)] * steps
    if len(schedule) != steps:
        raise ParameterError(name, f"one number or {steps} of them, one per step")
    return [float(number) for number in schedule]


Found = TypeVar("Found")
_ALLOWED = {
    "missing_keyword_only_argument": "given",
    "unexpected_keyword_argument": "omitted: it is not a parameter here",
}


PUBLISHED: Mapping[str, Callable[..., Guarantee]] = {
    "koloskova_theorem_4_1": koloskova.theorem_4_1,
    "koloskova_theorem_a_9": koloskova.theorem_a_9,
    "koloskova_theorem_4_2": koloskova.theorem_4_2,
    "koloskova_output_perturbation": koloskova.classical_output_perturbation,
    "chien_theorem_3_2": chien.theorem_3_2,
    "chien_corollary_3_7": chien.corollary_3_7,
    "chien_corollary_3_8": chien.corollary_3_8,
    "chien_corollary_3_10": chien.corollary_3_10,
    "chien_theorem_3_11": chien.theorem_3_11,
    "chien_corollary_j_1": chien.corollary_j_1,
    "neel_theorem_9": neel.theorem_9,
    "neel_theorem_28": neel.theorem_28,
    "chien_theorem_p_2": full_batch.chien_theorem_p_2,
    "chourasia_theorem_5_1": full_batch.chourasia_theorem_5_1,
    "dp_sgd_group_privacy": koloskova.group_privacy,
}
"""The papers' own bounds, to compare with."""


def account(name: str, parameters: Mapping[str, Any]) -> Guarantee:
    """Return the guarantee of a bound, or raise ``NotFoundError`` or ``ParameterError``."""
    if name not in PUBLISHED:
        raise NotFoundError("mechanism", name)
    return _call(PUBLISHED[name], parameters)


def compute(name: str, parameters: Mapping[str, Any]) -> float:
    """Return one of ``QUANTITIES``, or raise ``NotFoundError`` or ``ParameterError``."""
    if name not in QUANTITIES:
        raise NotFoundError("mechanism or quantity", name)
    return _call(QUANTITIES[name], parameters)


def _call(function: Callable[..., Found], parameters: Mapping[str, Any]) -> Found:
    """Call a function with parameters that are given, known and of its types, unconverted."""
    checked = validate_call(config=ConfigDict(strict=True))(function)
    try:
        return checked(**parameters)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        allowed = _ALLOWED.get(first["type"], f"of another form ({first['msg']})")
        raise ParameterError(str(first["loc"][0]), allowed) from error
