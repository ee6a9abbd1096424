"""Policies and definitions of models in HTML forms: each field as text, checked as the API does."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from app.api.models import ModelBody
from app.api.policies import PolicyBody
from app.domain.errors import InvalidInputError
from app.domain.policy import AUTO, Policy
from app.domain.states import FirstRelease, Serving
from app.ledger.models.definitions import ModelDefinition
from app.planning.mechanisms.catalogue import MECHANISMS

_NUMBERS = ("epsilon", "delta", "window_s", "deadline_s")
_OPTIONAL = {"budget_epochs": float, "retrain_every_s": float, "retrain_after_records": int}
_OBJECTS = ("architecture", "task", "recipe")


CHOICES = {
    "mechanisms": (AUTO, *MECHANISMS),
    "serving": tuple(Serving),
    "first_release": tuple(FirstRelease),
}
"""What the lists of a policy's form offer."""


def policy_changes(form: Mapping[str, str], *, fixed: bool) -> dict[str, Any]:
    """Return the fields of a policy as JSON values.

    Args:
        form: the texts.
        fixed: whether to leave out what cannot be changed after a model's definition.

    Raises:
        InvalidInputError: a field is not of its type; the message names it.
    """
    values: dict[str, Any] = {name: _number(form, name) for name in _NUMBERS}
    values |= {
        name: _number(form, name, kind) if form.get(name) else None
        for name, kind in _OPTIONAL.items()
    }
    values |= {
        "mechanism": form.get("mechanism", AUTO),
        "parameters": _object(form, "parameters"),
        "serving": form.get("serving", ""),
    }
    if not fixed:
        values["first_release"] = form.get("first_release", "")
        values["adaptive"] = form.get("adaptive") == "on"
    try:
        return PolicyBody.model_validate(values).model_dump(include=set(values))
    except ValidationError as error:
        raise _refused(error) from error


def definition_of(form: Mapping[str, str]) -> ModelDefinition:
    """Return the model that a form describes.

    Raises:
        InvalidInputError: a field is not of its type, or not one that a definition has.
        ParameterError: a number is out of its range.
    """
    given: dict[str, Any] = {name: _object(form, name) for name in _OBJECTS if form.get(name)}
    named = {name: form.get(name, "") for name in ("name", "dataset", "weights")}
    policy = policy_changes(form, fixed=False)
    try:
        return ModelBody.model_validate(named | given | {"policy": policy}).definition()
    except ValidationError as error:
        raise _refused(error) from error


def quoted(quotes: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    """Return planning's answer as a page shows it: the mechanism that would be taken first."""
    taken = quotes["choice"] if policy.mechanism == AUTO else policy.mechanism
    offers = sorted(quotes["quotes"], key=lambda quote: quote["mechanism"] != taken)
    refused = next(
        (each["reason"] for each in quotes["declined"] if each["mechanism"] == taken), None
    )
    return {"taken": taken, "offers": offers, "refused": refused, "declined": quotes["declined"]}


def _refused(error: ValidationError) -> InvalidInputError:
    first = error.errors(include_url=False, include_input=False)[0]
    return InvalidInputError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")


def _number(form: Mapping[str, str], name: str, kind: type[float] = float) -> float:
    try:
        return kind(form.get(name, ""))
    except ValueError as error:
        needed = "a whole number" if kind is int else "a number"
        raise InvalidInputError(f"{name}: {needed} is needed") from error


def _object(form: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        found = json.loads(form.get(name) or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{name}: this is not JSON") from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"{name}: a JSON object is needed")
    return found
