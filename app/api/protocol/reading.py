"""Parses and validates JSON bodies before their endpoints, without blocking other callers.

FastAPI would do both in the event loop, and describe each of a million errors. Python's JSON parser
does not release the GIL, so a large body is parsed in a separate process, which also limits the
memory for it.
"""

from typing import Any

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.api.protocol.errors import MAX_LISTED, BodyError
from app.runtime.json_reading import read_json
from app.runtime.processes.process_pool import ProcessPool

LARGE_BYTES = 256 * 1024
MOST_VALUES = 250_000
"""Above the size of the largest forget request."""


class CheckedRequest(Request):
    """A request whose JSON body is already the endpoint's model."""

    def __init__(self, request: Request, content: bytes, checked: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._body = content
        self._checked = checked

    async def json(self) -> BaseModel:
        """Return the body, a model, which FastAPI accepts as it is."""
        return self._checked


async def read_body(request: Request, model: type[BaseModel], readers: ProcessPool) -> Request:
    """Return a request with its JSON body validated; one without such a body unchanged.

    Raises:
        UnreadableError, InvalidInputError: it is not JSON.
        BodyError: it does not match the endpoint's model.
        TooCostlyError, OverloadedError: parsing it takes too much, or the service is busy.
    """
    if not is_json(request):
        return request
    try:
        content = await request.body()
    except ClientDisconnect as error:
        raise HTTPException(400, "the body is incomplete") from error
    if not content:
        return request
    if len(content) <= LARGE_BYTES:
        checked = _check(read_json(content), model)
    else:
        checked = await run_in_threadpool(_read_large, content, model, readers)
    return CheckedRequest(request, content, checked)


def is_json(request: Request) -> bool:
    """Return whether a body is declared as JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _read_large(content: bytes, model: type[BaseModel], readers: ProcessPool) -> BaseModel:
    return _check(readers.call(None, read_json, content, most_values=MOST_VALUES), model)


def _check(document: Any, model: type[BaseModel]) -> BaseModel:  # noqa: ANN401 - JSON
    """Validate a document as a model; many unknown top-level members are only counted."""
    unknown = 0
    if isinstance(document, dict):
        known = {name: value for name, value in document.items() if name in model.model_fields}
        foreign = [name for name in document if name not in known]
        unknown = max(0, len(foreign) - MAX_LISTED)
        document = known | dict.fromkeys(foreign[:MAX_LISTED])
    try:
        return model.model_validate(document)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise BodyError(
            [{**fault, "loc": ("body", *fault["loc"])} for fault in faults[:MAX_LISTED]],
            error.error_count() + unknown,
        ) from None
