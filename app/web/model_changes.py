"""What changes models: their definition and policy, each quoted first; retraining; the end."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response

from app.api.protocol.access import ServicesOf
from app.api.protocol.dependencies import Left, Make
from app.domain.policy import Policy
from app.ledger.models import definitions, endings, policies, retraining
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.services import Services
from app.web import pages
from app.web.access import ModelsSender, ModelsWriter, Visitor
from app.web.forms import Form
from app.web.policy_forms import CHOICES, definition_of, policy_changes, quoted
from app.web.rendering import render

router = pages.router()

_NETWORK = '{"name": "mlp", "options": {"hidden": [32]}}'
_FIRST = {"weights": "train", "recipe": "{}", "architecture": _NETWORK}
_FIRST |= dict.fromkeys(("name", "dataset", "task"), "")


@router.get("/new-model")
def ask(services: ServicesOf, visitor: ModelsWriter) -> Response:
    """Ask for a model's definition."""
    return _form(
        "models/new_model.html", visitor, Policy(), _FIRST, datasets=_dataset_names(services)
    )


@router.post("/new-model/quote")
def quote_new(services: ServicesOf, visitor: ModelsSender, form: Form, left: Left) -> Response:
    """Show what each mechanism would do for such a model; nothing is stored."""
    definition = definition_of(form)
    occasion = definitions.occasion_of(
        services.database, definition, max_parameters=services.settings.max_parameters
    )
    quotes = services.planners.quotes(policy=occasion.policy, shape=occasion.shape, left=left)
    names = _dataset_names(services)
    return _form("models/new_model.html", visitor, definition.policy, form, quotes, datasets=names)


@router.post("/new-model")
def define(services: ServicesOf, _: ModelsSender, form: Form, make: Make) -> Response:
    """Define a model and start its training."""
    definition = definition_of(form)
    definitions.define_model(
        services.database,
        definition,
        max_parameters=services.settings.max_parameters,
        make=make,
    )
    return pages.redirect(f"/models/{definition.name}")


@router.get("/models/{name}/policy")
def show_policy(name: str, services: ServicesOf, visitor: ModelsWriter) -> Response:
    """Show a model's policy in a form."""
    with services.database.transaction() as session:
        policy = Policy.from_json(registry.model_named(session, name).policy)
    return _form("models/policy.html", visitor, policy, {}, name=name)


@router.post("/models/{name}/policy/quote")
def quote_policy(
    name: str, services: ServicesOf, visitor: ModelsSender, form: Form, left: Left
) -> Response:
    """Show what the model's next run would be under a changed policy; nothing changes."""
    changes = policy_changes(form, fixed=True)
    policy, occasion = policies.changed_occasion(services.database, name, changes)
    quotes = services.planners.quotes(policy=policy, shape=occasion.shape, left=left)
    return _form("models/policy.html", visitor, policy, {}, quotes, name=name)


@router.post("/models/{name}/policy")
def change_policy(
    name: str, services: ServicesOf, _: ModelsSender, form: Form, make: Make
) -> Response:
    """Change a model's policy, from its next run on."""
    changes = policy_changes(form, fixed=True)
    policies.change_policy(services.database, name, changes, make=make)
    return pages.redirect(f"/models/{name}")


@router.post("/models/{name}/retrain")
def retrain(name: str, services: ServicesOf, _: ModelsSender, make: Make) -> Response:
    """Train a model anew on the records that are there now."""
    run = retraining.retrain(services.database, name, make=make)
    return pages.redirect(f"/runs/{run.id}")


@router.post("/models/{name}/archive")
def archive(name: str, services: ServicesOf, _: ModelsSender) -> Response:
    """Take a model out of service for good."""
    with services.database.transaction() as session:
        endings.archive_model(session, name)
    return pages.redirect(f"/models/{name}")


def _form(
    template: str,
    visitor: Visitor,
    policy: Policy,
    others: Mapping[str, str],
    quotes: Mapping[str, Any] | None = None,
    **context: Any,  # noqa: ANN401 - as of ``render``
) -> Response:
    """Show a form with a policy and other fields, and what was quoted for them."""
    fields = policy.to_json()
    return render(
        template,
        visitor,
        values={**fields, "parameters": json.dumps(fields["parameters"]), **others},
        choices=CHOICES,
        quote=None if quotes is None else quoted(quotes, policy),
        **context,
    )


def _dataset_names(services: Services) -> list[str]:
    with services.database.transaction() as session:
        return [each.name for each in datasets.datasets(session) if each.archived_at is None]
