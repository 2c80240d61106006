"""A collector of traces: an HTTP server that parses exports with OpenTelemetry's own messages."""

import collections
import http.server
import threading
import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

WAIT_MAX_S = 60


class Collector:
    """Listens on a free port of the loopback. `statuses` are the answers to come; then it answers 200."""

    def __init__(self, port: int = 0):
        self.statuses = collections.deque()
        self.requests = []
        self.spans = []
        self.resources = []
        self.changed = threading.Condition()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = collector.take(self.path, dict(self.headers), body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> "Collector":
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()

    def take(self, path: str, headers: dict, body: bytes) -> int:
        export = ExportTraceServiceRequest()
        export.ParseFromString(body)
        with self.changed:
            status = self.statuses.popleft() if self.statuses else 200
            self.requests.append((path, headers, status))
            if status == 200:
                for resource in export.resource_spans:
                    self.resources.append(attributes(resource.resource))
                    self.spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.changed.notify_all()
        return status

    def wait(self, wanted, what: str):
        """Waits until `wanted(spans)` is true. Returns that."""
        deadline = time.monotonic() + WAIT_MAX_S
        with self.changed:
            while not (found := wanted(self.spans)):
                left = deadline - time.monotonic()
                names = collections.Counter(span.name for span in self.spans)
                assert left > 0, f"no {what} among {names}"
                self.changed.wait(left)
            return found

    def trace(self, trace_id: str) -> dict[str, object]:
        """Waits for the spans of one request. Returns them by name, the request's as "request"."""

        def whole(spans):
            own = [span for span in spans if span.trace_id.hex() == trace_id]
            return own if any(span.kind == span.SPAN_KIND_SERVER for span in own) else None

        spans = self.wait(whole, f"trace {trace_id}")
        server = [span for span in spans if span.kind == span.SPAN_KIND_SERVER]
        assert len(server) == 1
        return {"request" if span in server else span.name: span for span in spans}

    def loads(self, version: int) -> list:
        """Waits for the span of the load of a version."""

        def of_version(spans):
            roots = [span for span in spans if span.name == "load version"]
            return [span for span in roots if attributes(span)["millpond.model.version"] == version]

        return self.wait(of_version, f"load of version {version}")


def attributes(message) -> dict[str, object]:
    """Returns the attributes of a span, a resource or a link."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in message.attributes}
