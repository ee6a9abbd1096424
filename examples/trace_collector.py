"""Stand in for a collector of OpenTelemetry: print each span that arrives as one line.

    python examples/trace_collector.py 4318

A line is trace, name, seconds, process and attributes. Needs ``pip install 'expunge[otel]'``.
"""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(BaseHTTPRequestHandler):
    """Takes spans by OTLP over HTTP, in protobuf."""

    def do_POST(self) -> None:
        """Print what came in."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            for span in (each for scope in part.scope_spans for each in scope.spans):
                seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
                said = {a.key: a.value.string_value or a.value.int_value for a in span.attributes}
                process = said.pop("process.pid")
                told = " ".join(f"{name}={value}" for name, value in sorted(said.items()))
                line = f"{span.trace_id.hex()} {span.name} {seconds:.3f} s {process} {told}\n"
                sys.stdout.write(line)
                sys.stdout.flush()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing else."""


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Collector).serve_forever()
