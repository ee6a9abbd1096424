"""The API on a real socket, and a layer in front of it that misbehaves when it is told to."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.support.patience import PATIENCE_S

Scope, Message = dict[str, Any], dict[str, Any]


@contextmanager
def serve(app: Callable[..., Any], **options: Any) -> Iterator[str]:
    """Serve an ASGI application with uvicorn; yield its URL."""
    options |= {"port": 0, "log_config": None, "access_log": False}
    server = uvicorn.Server(uvicorn.Config(app, **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


class Unreliable:
    """Passes requests on; answers about weights may be cut off, changed or delayed.

    Attributes:
        cuts: for each coming answer, how many bytes of its body pass before the connection ends.
        change: what to do to each chunk of a body.
        on_body: called once, before the first chunk of an answer's body passes.
        ranges: the ``Range`` header of each request for weights, or None.
        drop: names of request headers that do not get through.
        refusals: for each coming call, a status that a proxy answers in the service's stead.
    """

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app
        self.cuts: list[int] = []
        self.change: Callable[[bytes], bytes] = lambda chunk: chunk
        self.on_body: Callable[[], None] | None = None
        self.ranges: list[str | None] = []
        self.drop: set[bytes] = set()
        self.refusals: list[int] = []

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/weights"):
            await self._app(scope, receive, send)
            return
        scope["headers"] = [(k, v) for k, v in scope["headers"] if k not in self.drop]
        asked = dict(scope["headers"]).get(b"range")
        self.ranges.append(None if asked is None else asked.decode())
        if self.refusals:
            await send(
                {"type": "http.response.start", "status": self.refusals.pop(0), "headers": []}
            )
            await send({"type": "http.response.body", "body": b""})
            return
        left = self.cuts.pop(0) if self.cuts else None

        async def sending(message: Message) -> None:
            nonlocal left
            if message["type"] == "http.response.body" and message.get("body"):
                if self.on_body is not None:
                    call, self.on_body = self.on_body, None
                    call()
                body = self.change(message["body"])
                if left is not None and len(body) >= left:
                    await send(message | {"body": body[:left], "more_body": True})
                    raise _CutError
                left = None if left is None else left - len(body)
                message = message | {"body": body}
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except _CutError:
            return


class _CutError(Exception):
    """The connection ends here."""


class Flaky:
    """Fails as networks and proxies do, for the calls to come, then passes requests on.

    Attributes:
        faults: what happens to each coming call: a status, which a proxy answers in the service's
            stead; ``before``, the connection ends before the service gets the call; ``after``, it
            gets it and the answer is lost; ``None``, nothing.
        headers: what a proxy's answers carry besides.
        seen: method, path and headers of each call.
    """

    def __init__(self, app: Callable[..., Any], *faults: int | str | None) -> None:
        self._app = app
        self.faults = list(faults)
        self.headers: list[tuple[bytes, bytes]] = []
        self.seen: list[tuple[str, str, dict[str, str]]] = []

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.seen.append((scope["method"], scope["path"], headers))
        fault = self.faults.pop(0) if self.faults else None
        if fault is None:
            await self._app(scope, receive, send)
        elif isinstance(fault, int):
            await send({"type": "http.response.start", "status": fault, "headers": self.headers})
            await send({"type": "http.response.body", "body": b"<h1>bad gateway</h1>"})
        else:
            if fault == "after":
                await self._app(scope, receive, _nowhere)
            # A start without a body: uvicorn closes the connection.
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-length", b"9")],
                }
            )


async def _nowhere(_: Message) -> None:
    return
