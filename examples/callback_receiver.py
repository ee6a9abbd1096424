"""A receiver of callbacks that checks every message: see docs/callbacks.md."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

webhook = Webhook(os.environ["CALLBACK_SECRET"])
seen: set[str] = set()  # in real life a table, so that a restart forgets nothing


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to what we sent, and 400 to what others did."""

    def do_POST(self) -> None:
        """Verify a message and print it, once."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            message = webhook.verify(body, dict(self.headers))  # the body as it came, unparsed
        except WebhookVerificationError:
            self.send_response(400)
        else:
            if self.headers["webhook-id"] not in seen:  # the same message may come twice
                seen.add(self.headers["webhook-id"])
                print(message["data"]["request"], message["data"]["state"], flush=True)  # noqa: T201
            self.send_response(204)
        self.end_headers()


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Receiver).serve_forever()
