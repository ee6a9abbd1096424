"""Answers that stream a stored object: conditions, one range, digests, constant memory."""

import base64
import logging

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.api.protocol.conditions import is_not_modified, requested_part
from app.domain.errors import CorruptObjectError, GoneError, KeyStoreError, ObjectStoreError
from app.storage.blobs import Blobs
from app.storage.ranges import BlobRange

_log = logging.getLogger("expunge.api")


def download(
    request: Request, blobs: Blobs, *, blob_id: str, sha256: str, size: int, filename: str
) -> Response:
    """Answer GET or HEAD with a stored object, or with the part that the request asks for.

    Copies may be cached but must be revalidated each time: a version can be retired at any moment,
    and a cache that answers by itself would then serve weights that must be gone.

    Args:
        request: its method and its conditions decide the answer.
        blobs: where the object lies.
        blob_id: the object.
        sha256: digest of its whole content, in hex; also its entity tag.
        size: of its whole content, in bytes.
        filename: under which browsers store it; plain ASCII without quotes.

    Raises:
        GoneError: the object was shredded.
        CorruptObjectError: the object is not what was stored.
        ObjectStoreError, KeyStoreError: it cannot be read now.
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
    """Sends a range chunk by chunk; it ends without an error only if every byte was sent."""

    def __init__(self, content: BlobRange, status: int, headers: dict[str, str]) -> None:
        super().__init__(content, status_code=status, headers=headers)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response until it is complete or the receiver has gone.

        A shredded object ends it before its announced length: the server then closes the
        connection, and the receiver knows that bytes are missing. The same happens to an object
        that is not what was stored, before any byte of the chunk in question is sent.
        """
        try:
            await super().__call__(scope, receive, send)
        except GoneError:
            _log.warning("a download was cut off: its object was shredded meanwhile")
        except (CorruptObjectError, KeyStoreError, ObjectStoreError) as error:
            _log.error("a download was cut off: %s", error)
        finally:
            self._content.close()
