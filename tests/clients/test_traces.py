"""Traces of requests and loads, exported to a receiver that parses them with OpenTelemetry's messages."""

import concurrent.futures
import re
import secrets
import time

import grpc
import numpy
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from google.protobuf.json_format import MessageToDict
from millpond import Server, drop_in
from models import half_plus_two
from otlp_collector import Collector, attributes
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from tritonclient.utils import InferenceServerException

TIMEOUT_S = 60
STAGES = {"receive", "decode", "queue", "run", "encode", "send"}


@pytest.fixture
def collector():
    with Collector() as collector:
        yield collector


class Parent:
    """The span of a client."""

    def __init__(self, sampled: bool = True):
        self.trace_id = secrets.token_hex(16)
        self.span_id = secrets.token_hex(8)
        self.header = f"00-{self.trace_id}-{self.span_id}-0{int(sampled)}"

    @property
    def headers(self) -> dict[str, str]:
        return {"traceparent": self.header, "tracestate": "vendor=1"}


def oip_http(server, parent: Parent) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    url = f"{server.url}/v2/models/half_plus_two/infer"
    answer = requests.post(url, json=body, headers=parent.headers, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text


def tfs_http(server, parent: Parent) -> None:
    url = f"{server.url}/v1/models/half_plus_two:predict"
    answer = requests.post(url, json={"instances": [1, 2]}, headers=parent.headers, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text


def oip_grpc(server, parent: Parent) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        x = tritonclient.grpc.InferInput("x", [2], "FP32")
        x.set_data_from_numpy(numpy.array([1, 2], numpy.float32))
        client.infer("half_plus_two", [x], headers=parent.headers)


def tfs_grpc(server, parent: Parent) -> None:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "half_plus_two"
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=2)
    request.inputs["x"].float_val.extend([1, 2])
    with grpc.insecure_channel(server.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        stub.Predict(request, timeout=TIMEOUT_S, metadata=list(parent.headers.items()))


HTTP = {"http.request.method": "POST", "http.response.status_code": 200, "url.scheme": "http"}
CALLS = [
    (
        oip_http,
        "POST /v2/models/{model}/infer",
        {
            **HTTP,
            "http.route": "/v2/models/{model}/infer",
            "url.path": "/v2/models/half_plus_two/infer",
            "millpond.protocol": "oip-http",
        },
    ),
    (
        tfs_http,
        "POST /v1/models/{model}:predict",
        {**HTTP, "url.path": "/v1/models/half_plus_two:predict", "millpond.protocol": "tfs-http"},
    ),
    (
        oip_grpc,
        "inference.GRPCInferenceService/ModelInfer",
        {
            "rpc.system": "grpc",
            "rpc.service": "inference.GRPCInferenceService",
            "rpc.method": "ModelInfer",
            "rpc.grpc.status_code": 0,
        },
    ),
    (
        tfs_grpc,
        "tensorflow.serving.PredictionService/Predict",
        {"rpc.service": "tensorflow.serving.PredictionService", "millpond.protocol": "tfs-grpc"},
    ),
]


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A server that traces what its clients trace, and the collector."""
    scratch = tmp_path_factory.mktemp("traced")
    drop_in(half_plus_two(scratch / "m.onnx"), scratch / "models" / "half_plus_two", 1)
    with Collector() as collector:
        flags = ["--otlp", collector.url, "--trace-sample", "0"]
        server = Server(scratch / "models", *flags, log=scratch / "server.log").wait_ready()
        yield server, collector
        assert server.stop() == 0, server.log_text()


@pytest.mark.parametrize("call, name, wanted", CALLS, ids=[call.__name__ for call, _, _ in CALLS])
def test_a_traced_request_has_all_spans(traced, call, name, wanted):
    server, collector = traced
    parent = Parent()
    call(server, parent)
    spans = collector.trace(parent.trace_id)
    request = spans.pop("request")
    assert set(spans) == STAGES
    assert (request.name, request.parent_span_id.hex()) == (name, parent.span_id)
    assert request.trace_state == "vendor=1"
    shown = attributes(request)
    assert wanted.items() <= shown.items(), shown
    assert shown["millpond.model.name"] == "half_plus_two" and shown["millpond.model.version"] == 1
    assert "user_agent.original" in shown and request.status.code == 0
    for span in spans.values():
        assert span.parent_span_id == request.span_id
        assert request.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= request.end_time_unix_nano
    ordered = sorted(STAGES, key=lambda stage: spans[stage].start_time_unix_nano)
    assert ordered.index("queue") < ordered.index("run") < ordered.index("encode")
    run = attributes(spans["run"])
    assert run["millpond.batch.requests"] == 1 and run["millpond.batch.id"] >= 1
    assert abs(request.end_time_unix_nano / 1e9 - time.time()) < WITHIN_S


def test_calls_of_collections_and_images_have_a_span(traced):
    server, collector = traced
    calls = [
        ("PUT", "/collections/{collection}", "/collections/spans", {"vectors": {"size": 2, "distance": "Dot"}}, 200),
        ("GET", "/collections/{collection}", "/collections/none", None, 404),
        ("GET", "/v1/images", "/v1/images", None, 200),
        ("GET", "/v1/audio", "/v1/audio", None, 200),
    ]
    for method, route, path, body, status in calls:
        parent = Parent()
        answer = requests.request(method, server.url + path, json=body, headers=parent.headers, timeout=TIMEOUT_S)
        assert answer.status_code == status, answer.text
        spans = collector.trace(parent.trace_id)
        request = spans.pop("request")
        assert not spans and request.name == f"{method} {route}"
        assert request.parent_span_id.hex() == parent.span_id and request.trace_state == "vendor=1"
        shown = attributes(request)
        assert (shown["http.route"], shown["url.path"]) == (route, path)
        assert shown["http.response.status_code"] == status
    requests.delete(f"{server.url}/collections/spans", timeout=TIMEOUT_S)


# Clocks agree at least this well: the test's machine is the server's.
WITHIN_S = 60


def test_the_flag_of_the_parent_is_honoured(traced):
    server, collector = traced
    unsampled, sampled = Parent(sampled=False), Parent()
    before = len(collector.spans)
    oip_http(server, unsampled)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    requests.post(f"{server.url}/v2/models/half_plus_two/infer", json=body, timeout=TIMEOUT_S)
    oip_http(server, sampled)
    collector.trace(sampled.trace_id)
    server_spans = [span for span in collector.spans[before:] if span.kind == span.SPAN_KIND_SERVER]
    later = {span.trace_id.hex() for span in server_spans}
    assert later == {sampled.trace_id}


def test_a_failed_request_says_so(traced):
    server, collector = traced
    wrong, unknown = Parent(), Parent()
    body = {"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [1]}]}
    url = f"{server.url}/v2/models/half_plus_two/infer"
    requests.post(url, json=body, headers=wrong.headers, timeout=TIMEOUT_S)
    request = collector.trace(wrong.trace_id)["request"]
    shown = attributes(request)
    assert (shown["http.response.status_code"], shown["error.type"]) == (400, "invalid_argument")
    assert request.status.code == 0, "a mistake of the client is not a failure of the server"
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        x = tritonclient.grpc.InferInput("x", [1], "FP32")
        x.set_data_from_numpy(numpy.array([1], numpy.float32))
        with pytest.raises(InferenceServerException):
            client.infer("missing", [x], headers=unknown.headers)
    shown = attributes(collector.trace(unknown.trace_id)["request"])
    assert (shown["rpc.grpc.status_code"], shown["error.type"]) == (5, "not_found")


def test_the_server_describes_itself(traced):
    server, collector = traced
    oip_http(server, parent := Parent())
    collector.trace(parent.trace_id)
    path, headers, _ = collector.requests[-1]
    assert (path, headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    resource = collector.resources[-1]
    assert resource["service.name"] == "millpond" and resource["telemetry.sdk.language"] == "rust"
    assert {"service.version", "service.instance.id"} <= set(resource)


def test_exemplars_name_the_trace(traced):
    server, _ = traced
    oip_http(server, parent := Parent())
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}

    def named() -> dict:
        text = requests.get(f"{server.url}/metrics", headers=headers, timeout=TIMEOUT_S).text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        samples = families["millpond_request_seconds"].samples
        total = [sample for sample in samples if sample.labels.get("phase") == "total" and sample.exemplar]
        return {sample.exemplar.labels["trace_id"]: sample for sample in total}

    # The total is known after the answer was sent.
    deadline = time.monotonic() + TIMEOUT_S
    while parent.trace_id not in (found := named()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    sample = found[parent.trace_id]
    assert sample.labels["version"] == "1" and sample.exemplar.value <= float(sample.labels["le"])
    classic = requests.get(f"{server.url}/metrics", headers={"Accept": "text/plain"}, timeout=TIMEOUT_S).text
    assert "trace_id" not in classic


def test_batch_mates_are_linked(serve, collector, tmp_path):
    root = tmp_path / "models"
    drop_in(half_plus_two(tmp_path / "m.onnx"), root / "half_plus_two", 1)
    settings = '[schedule]\nmode = "async"\nmax-queue-delay = "100ms"\nalways-merge = true\n'
    (root / "half_plus_two" / "millpond.toml").write_text(settings)
    server = serve(root, "--otlp", collector.url, "--trace-sample", "1", "--threads", "1")

    def linked(spans):
        runs = {(span.trace_id, span.span_id): span for span in spans if span.name == "run"}
        return [
            (span, runs[link.trace_id, link.span_id])
            for span in runs.values()
            for link in span.links
            if attributes(link)["millpond.link"] == "batch" and (link.trace_id, link.span_id) in runs
        ]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for _ in range(20):
            list(pool.map(lambda _: oip_http(server, Parent()), range(16)))
            if any(attributes(span).get("millpond.batch.requests", 1) > 1 for span in collector.spans):
                break
    pairs = collector.wait(linked, "run with a link")
    for one, other in pairs:
        assert attributes(one)["millpond.batch.id"] == attributes(other)["millpond.batch.id"]
        assert one.trace_id != other.trace_id
    back = {(other.span_id, one.span_id) for one, other in pairs}
    assert any((one.span_id, other.span_id) in back for one, other in pairs), "both ways"


def test_a_load_is_a_trace_of_its_own(serve, collector, tmp_path):
    root = tmp_path / "models"
    server = serve(root, "--otlp", collector.url, "--trace-sample", "0")
    first = collector.loads(1)[0]
    assert not first.parent_span_id and attributes(first)["millpond.model.name"] == "half_plus_two"
    stages = collector.wait(
        lambda spans: [span for span in spans if span.parent_span_id == first.span_id], "stages of the load"
    )
    assert {"load", "warm up"} >= {span.name for span in stages}
    source = half_plus_two(tmp_path / "second.onnx")
    found = []
    # A load is so short that it may overlap no request. Then the next version is loaded.
    for version in range(2, 22):
        drop_in(source, root / "half_plus_two", version)
        traces = []
        while server.versions("half_plus_two").get(version, {}).get("state") != "AVAILABLE":
            oip_http(server, parent := Parent())
            traces.append(parent.trace_id)
        later = collector.loads(version)[0]
        assert later.trace_id != first.trace_id
        requests_of = [collector.trace(trace)["request"] for trace in traces]
        found = [link for request in requests_of for link in request.links if link.span_id == later.span_id]
        if found:
            break
    assert found, "no request has a link to a load"
    assert (found[0].trace_id, attributes(found[0])["millpond.link"]) == (later.trace_id, "load")


def test_a_failed_load_is_traced(serve, collector, tmp_path):
    root = tmp_path / "models"
    serve(root, "--otlp", collector.url, "--load-retries", "0")
    broken = root / "half_plus_two" / "2"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"no model")
    failed = collector.loads(2)[0]
    assert failed.status.code == 2 and failed.status.message


def spans_counted(server, kind: str) -> int:
    text = requests.get(f"{server.url}/metrics", timeout=TIMEOUT_S).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = families["millpond_trace_spans"].samples if "millpond_trace_spans" in families else []
    return int(sum(sample.value for sample in samples if sample.labels["kind"] == kind))


def test_an_export_is_repeated(serve, collector, tmp_path):
    collector.statuses.extend([503, 503])
    server = serve(tmp_path / "models", "--otlp", collector.url, "--trace-sample", "0")
    oip_http(server, parent := Parent())
    collector.trace(parent.trace_id)
    assert [status for _, _, status in collector.requests[:3]] == [503, 503, 200]
    assert len([line for line in server.log_text().splitlines() if "traces cannot be exported" in line]) == 1
    oip_http(server, later := Parent())
    collector.trace(later.trace_id)
    assert spans_counted(server, "exported") >= 7 and spans_counted(server, "failed") == 0


def test_a_collector_that_is_away_costs_one_line(serve, tmp_path):
    server = serve(tmp_path / "models", "--otlp", "http://127.0.0.1:9", "--trace-sample", "1")
    deadline = time.monotonic() + TIMEOUT_S
    while "traces cannot be exported" not in server.log_text() and time.monotonic() < deadline:
        oip_http(server, Parent())
    server.assert_serving()
    lines = [line for line in server.log_text().splitlines() if "traces cannot be exported" in line]
    assert len(lines) == 1, lines
    assert server.stop() == 0


def test_environment_variables_configure(collector, serve, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ads")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    server = serve(tmp_path / "models")
    oip_http(server, parent := Parent(sampled=False))
    collector.trace(parent.trace_id)
    assert collector.resources[-1]["service.name"] == "ads"
    assert collector.requests[-1][1]["x-tenant"] == "a b"


def test_sampling_changes_at_run_time(serve, collector, tmp_path):
    server = serve(tmp_path / "models", "--otlp", collector.url, "--trace-sample", "0")
    url = f"{server.url}/v1/trace"
    shown = requests.get(url, timeout=TIMEOUT_S).json()
    assert shown == {"sample": 0.0, "models": {}, "parent_based": True}
    for wrong in ({"sample": 2}, {"rate": 1}, {"models": {"m": -1}}, {"sample": "all"}):
        assert requests.put(url, json=wrong, timeout=TIMEOUT_S).status_code == 400, wrong
    changed = requests.put(url, json={"models": {"half_plus_two": 1}}, timeout=TIMEOUT_S)
    assert changed.json()["models"] == {"half_plus_two": 1.0}
    server.assert_serving()
    collector.wait(lambda spans: [s for s in spans if s.kind == s.SPAN_KIND_SERVER], "request")


def test_tritons_clients_change_sampling(serve, collector, tmp_path):
    server = serve(tmp_path / "models", "--otlp", collector.url, "--trace-sample", "0")
    with (
        tritonclient.http.InferenceServerClient(server.http) as http,
        tritonclient.grpc.InferenceServerClient(server.grpc) as rpc,
    ):
        assert http.get_trace_settings()["trace_level"] == ["OFF"]
        settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": "4"}
        updated = http.update_trace_settings("half_plus_two", settings)
        assert (updated["trace_level"], updated["trace_rate"]) == (["TIMESTAMPS"], "4")
        shown = MessageToDict(rpc.get_trace_settings("half_plus_two"))["settings"]
        assert shown["trace_rate"] == {"value": ["4"]}
        assert requests.get(f"{server.url}/v1/trace", timeout=TIMEOUT_S).json()["models"] == {"half_plus_two": 0.25}
        rpc.update_trace_settings("half_plus_two", {"trace_level": None, "trace_rate": None})
        assert http.get_trace_settings("half_plus_two")["trace_level"] == ["OFF"]
        rpc.update_trace_settings(settings={"trace_level": "TIMESTAMPS", "trace_rate": "1"})
        assert requests.get(f"{server.url}/v1/trace", timeout=TIMEOUT_S).json()["sample"] == 1.0
        for client in (http, rpc):
            with pytest.raises(InferenceServerException, match="trace_file|trace_level"):
                client.update_trace_settings(settings={"trace_level": ["TENSORS"]})
            with pytest.raises(InferenceServerException, match="missing"):
                client.get_trace_settings("missing")


def test_tritons_clients_change_the_log(serve, tmp_path):
    server = serve(tmp_path / "models")
    with (
        tritonclient.http.InferenceServerClient(server.http) as http,
        tritonclient.grpc.InferenceServerClient(server.grpc) as rpc,
    ):
        shown = http.get_log_settings()
        assert shown["log_info"] is True and shown["log_verbose_level"] == 0
        assert http.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
        assert requests.get(f"{server.url}/v1/log", timeout=TIMEOUT_S).json() == {"filter": "debug"}
        changed = rpc.update_log_settings({"log_info": False, "log_verbose_level": 0})
        assert changed.settings["log_info"].bool_param is False
        assert requests.get(f"{server.url}/v1/log", timeout=TIMEOUT_S).json() == {"filter": "warn"}
        with pytest.raises(InferenceServerException, match="log_file"):
            rpc.update_log_settings({"log_file": "/tmp/triton.log"})


def test_without_a_collector_traces_are_off(server):
    answer = requests.get(f"{server.url}/v1/trace", timeout=TIMEOUT_S)
    assert answer.status_code == 409 and "--otlp" in answer.json()["error"], answer.text
    with (
        tritonclient.http.InferenceServerClient(server.http) as http,
        tritonclient.grpc.InferenceServerClient(server.grpc) as rpc,
    ):
        assert http.get_trace_settings()["trace_level"] == ["OFF"]
        shown = MessageToDict(rpc.get_trace_settings("half_plus_two"))["settings"]
        assert shown["trace_level"] == {"value": ["OFF"]}
        assert http.update_trace_settings("half_plus_two", {"trace_level": ["OFF"]})["trace_level"] == ["OFF"]
        for client in (http, rpc):
            with pytest.raises(InferenceServerException, match="--otlp"):
                client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})


def test_a_load_is_one_line_of_the_log(serve, tmp_path):
    root = tmp_path / "models"
    server = serve(root)
    drop_in(half_plus_two(tmp_path / "second.onnx"), root / "half_plus_two", 2)
    server.wait_version("half_plus_two", 2)
    # The line may follow the state.
    deadline = time.monotonic() + TIMEOUT_S
    while "half_plus_two 2 ready in" not in server.log_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    # A busy machine adds a line that says why the load got another priority.
    lines = [line for line in server.log_text().splitlines() if "half_plus_two" in line and "priority" not in line]
    ready = [re.search(r" INFO .*half_plus_two (\d) ready in \d+", line) for line in lines]
    assert [match and match[1] for match in ready] == ["1", "2"], lines
