"""The largest JSON bodies of each operation: those that mean something, and those that do not."""

import json
from collections.abc import Callable
from typing import Any

from app.domain.places import MOST_URL_CHARACTERS
from app.runtime.settings import Settings
from tests.support.workshop import TASK

Body = dict[str, Any]

_SIZE, _SIZE_WITH_IDS = Settings().max_json_bytes, Settings().max_ids_bytes
_NAME = "n" * 100
_CUSTOM = {"name": "custom", "factory": "package.module:factory"}
_SCHEDULES = {"noise_std": [1.5] * 8000, "gradient_clip": [0.25] * 1500}
_IDENTITY = {"identity_type": "t" * 100, "identity_value": "v" * 512, "identity_format": "raw"}
_PERSON = {
    "regulation": "gdpr",
    "subject_request_id": "a7551968-d5d6-44b2-9831-815ac9017798",
    "subject_request_type": "erasure",
    "submitted_time": "2026-01-02T15:00:00Z",
    "subject_identities": [_IDENTITY] * 100,
}


def largest_bodies(operation: str, *, dataset: str) -> list[Body]:
    """Return them; ``KeyError`` for an operation that takes no JSON."""
    return [_filled(lambda fields: fields, ""), *_BODIES[operation](dataset)]


def _filled(body_of: Callable[[Body], Body], value: object, size: int = _SIZE) -> Body:
    """Return a body of nearly ``size`` bytes around an object with as many fields as fit."""
    entry = len(f'"{size}": {json.dumps(value)}, ')
    room = size - len(json.dumps(body_of({})))
    return body_of({str(i): value for i in range(room // entry)})


def _datasets(_: str) -> list[Body]:
    columns = {str(i): "list<float32, 1000000>" for i in range(1000)}
    long = {str(i) * 100: "int8" for i in range(100)}
    return [{"name": _NAME, "columns": each, "record_id": "id"} for each in (columns, long)]


def _imports(_: str) -> list[Body]:
    patterns = ("*" * MOST_URL_CHARACTERS, "../" * (MOST_URL_CHARACTERS // 3))
    return [{"url": f"s3://{each}"[:MOST_URL_CHARACTERS]} for each in patterns]


def _models(dataset: str) -> list[Body]:
    model = {"name": _NAME, "dataset": dataset, "task": TASK, "architecture": {"name": "mlp"}}
    return [
        _filled(lambda options: {**model, "architecture": {**_CUSTOM, "options": options}}, 0),
        {**model, "policy": {"parameters": _SCHEDULES}},
        _filled(lambda unknown: {**model, "policy": unknown}, ""),
    ]


def _policies(_: str) -> list[Body]:
    return [
        {"policy": {"parameters": _SCHEDULES}},
        _filled(lambda parameters: {"policy": {"parameters": parameters}}, ""),
    ]


def _backbones(_: str) -> list[Body]:
    body = {"name": _NAME, "input": {"shape": [1] * 8}, "classes": 10, "source": "s" * 2000}
    return [_filled(lambda options: {**body, "architecture": {**_CUSTOM, "options": options}}, 0)]


def _plans(_: str) -> list[Body]:
    return [
        {"model": _NAME, "policy": {"parameters": _SCHEDULES}},
        _filled(lambda parameters: {"model": _NAME, "policy": {"parameters": parameters}}, ""),
    ]


def _keys(_: str) -> list[Body]:
    key = {"name": _NAME, "scopes": ["admin"] * 100}
    return [key, {**key, "scopes": [1] * 20_000}]


def _forget_requests(dataset: str) -> list[Body]:
    letters = "i" * (_SIZE_WITH_IDS // 200_000 - 20)
    ids = [f"{letters}{i}" for i in range(100_000)]
    return [
        {"dataset": dataset, "record_ids": ids, "subject_ids": ids},
        {"dataset": dataset, "record_ids": [1] * 100_000},
        _filled(lambda unknown: unknown, 0, 3_000_000),
        _filled(lambda unknown: unknown, 0, _SIZE_WITH_IDS),
    ]


def _subject_requests(_: str) -> list[Body]:
    return [
        _filled(lambda foreign: {**_PERSON, "extensions": foreign}, 0, 3_000_000),
        _filled(lambda foreign: {**_PERSON, "extensions": foreign}, 0, _SIZE_WITH_IDS),
        {**_PERSON, "subject_identities": [{}] * 100},
    ]


_BODIES: dict[str, Callable[[str], list[Body]]] = {
    "POST /v1/datasets": _datasets,
    "POST /v1/datasets/{name}/imports": _imports,
    "POST /v1/models": _models,
    "PATCH /v1/models/{name}": _policies,
    "POST /v1/backbones": _backbones,
    "POST /v1/plans": _plans,
    "POST /v1/api-keys": _keys,
    "POST /v1/forget-requests": _forget_requests,
    "POST /v1/forget-requests/preview": _forget_requests,
    "POST /opendsr/v2/requests": _subject_requests,
}
