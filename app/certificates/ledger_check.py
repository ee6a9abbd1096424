"""A certificate's parameters against the drift ledger that it carries.

Where a mechanism's guarantee depends on the history of the lineage, the history is in the
certificate, and every parameter that speaks of it must be the history's own.
"""

from collections.abc import Mapping
from typing import Any, Final

from app.accounting.drift import DriftLedger
from app.certificates.tolerance import at_most
from app.domain.errors import ParameterError

MAX_STEPS: Final = 10_000_000
MAX_BATCHES: Final = 1_000_000
MAX_EVENTS: Final = 10_000
_CONSTANTS: Final = ("learning_rate", "weight_decay", "smoothness", "lipschitz")


def check_ledger(mechanism: Mapping[str, Any]) -> None:
    """Compare a certificate's ``mechanism`` section with its ledger, if it needs one.

    Raises:
        ParameterError: there is no ledger, it cannot be read, or a parameter is not what follows
            from it.
    """
    parameters = mechanism["parameters"]
    if "ledger" in parameters:  # the accountant takes the history itself
        _read(parameters["ledger"])
    if not {"drift", "forgotten"} & set(parameters):
        return
    history = _read(mechanism.get("ledger"))
    for name in _CONSTANTS:
        if name in parameters and parameters[name] != getattr(history.recipe, name):
            raise ParameterError(name, "the ledger's")
    if "drift" in parameters and not at_most(history.drift(), parameters["drift"]):
        raise ParameterError("drift", "at least the ledger's")
    if "forgotten" in parameters and history.forgotten() > parameters["forgotten"]:
        raise ParameterError("forgotten", "at least as many records as the ledger lists")
    if "records" in parameters and parameters["records"] != history.recipe.batch_size:
        raise ParameterError("records", "the ledger's")
    if "training_steps" in parameters and parameters["training_steps"] != history.steps:
        raise ParameterError("training_steps", "all steps of the ledger")


def _read(ledger: object) -> DriftLedger:
    if not isinstance(ledger, Mapping):
        raise ParameterError("ledger", "present: the guarantee depends on the lineage's history")
    batches, events = ledger.get("batches"), ledger.get("events")
    if not isinstance(batches, int) or batches > MAX_BATCHES:
        raise ParameterError("batches", f"at most {MAX_BATCHES}")
    if not isinstance(events, list) or len(events) > MAX_EVENTS:
        raise ParameterError("events", f"a list of at most {MAX_EVENTS}")
    history = DriftLedger.from_json(ledger)
    if history.steps > MAX_STEPS:
        raise ParameterError("events", f"at most {MAX_STEPS} steps")
    return history
