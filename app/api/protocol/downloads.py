"""Streams stored objects: conditions, one range, digests, constant memory."""

import base64
import logging

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.api.protocol.conditions import is_not_modified, requested_part
from app.domain.errors import (
    CorruptObjectError,
    GoneError,
    KeyServiceError,
    KeyStoreError,
    ObjectStoreError,
)
from app.storage.blobs import Blobs
from app.storage.ranges import BlobRange

_log = logging.getLogger("expunge.api")


def download(
    request: Request, blobs: Blobs, *, blob_id: str, sha256: str, size: int, filename: str
) -> Response:
    """Answer GET or HEAD with a stored object or the requested range of it.

    Caches must revalidate their copies each time: a version can be retired at any moment, and a
    cache would otherwise keep serving its weights. The digest ``sha256`` is also the entity tag;
    ``filename`` is plain ASCII without quotes.

    Raises:
        GoneError: the object was shredded.
        CorruptObjectError: the object is not what was stored.
        ObjectStoreError, KeyStoreError, KeyServiceError: it cannot be read now.
        PreconditionError: ``If-Match`` names other content.
        RangeError: the range begins after the end.
    """
    etag = f'"{sha256}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Accept-Ranges": "bytes"}
    if is_not_modified(request.headers, etag):
        return Response(status_code=304, headers=headers)
    part = requested_part(request.headers, etag, size)
    headers |= {
        "Content-Length": str(part.stop - part.start),
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f'attachment; filename="{filename}"',
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:",
    }
    status = 200 if part.is_whole else 206
    if not part.is_whole:
        headers["Content-Range"] = part.content_range
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return _Streamed(blobs.open_range(blob_id, part.start, part.stop), status, headers)


class _Streamed(StreamingResponse):
    """Sends a range in chunks; it ends without an error only if every byte was sent."""

    def __init__(self, content: BlobRange, status: int, headers: dict[str, str]) -> None:
        super().__init__(content, status_code=status, headers=headers)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response until it is complete or the client disconnects.

        If the object is shredded meanwhile or a chunk is corrupt, the response ends before its
        announced length, without any byte of that chunk. The server then closes the connection, so
        the client knows that bytes are missing.
        """
        try:
            await super().__call__(scope, receive, send)
        except GoneError:
            _log.warning("a download was aborted: its object was shredded meanwhile")
        except (CorruptObjectError, KeyServiceError, KeyStoreError, ObjectStoreError) as error:
            _log.error("a download was aborted: %s", error)
        finally:
            self._content.close()
