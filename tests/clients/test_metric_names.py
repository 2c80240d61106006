"""Triton's and TensorFlow Serving's names of metrics, read by Prometheus's own parsers."""

import numpy as np
import pytest
import requests
import tritonclient.http as triton_http
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

TIMEOUT_S = 60
TRITON = {
    "nv_inference_request_success", "nv_inference_request_failure", "nv_inference_count", "nv_inference_exec_count",
    "nv_inference_request_duration_us", "nv_inference_queue_duration_us", "nv_inference_compute_infer_duration_us",
    "nv_inference_pending_request_count",
}  # fmt: skip
MODEL = {"model": "half_plus_two", "version": "1"}
FORMATS = {"text/plain": classic, "application/openmetrics-text": openmetrics}


def scrape(server, accept: str) -> dict:
    """Returns each metric family by its name, and checks that each is declared once."""
    answer = requests.get(f"{server.url}/metrics", headers={"accept": accept}, timeout=TIMEOUT_S)
    assert answer.headers["content-type"].startswith(accept)
    families = list(FORMATS[accept](answer.text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    return dict(zip(names, families, strict=True))


def value(families: dict, name: str, **labels: str) -> float:
    # The parser of the older format adds the suffix of counters, or not, by the name.
    found = [sample.value for sample in families[name].samples if sample.labels == labels and sample.name in (name, f"{name}_total")]
    assert len(found) == 1, (name, families[name].samples)
    return found[0]


@pytest.fixture(scope="module")
def named(tmp_path_factory, sources):
    """Serves a model that has answered and refused requests."""
    from millpond import Server, drop_in

    root = tmp_path_factory.mktemp("names")
    drop_in(sources["half_plus_two"], root / "half_plus_two", 1)
    flags = ("--metric-names", "millpond", "--metric-names", "triton", "--metric-names", "tfs")
    server = Server(root, *flags, log=tmp_path_factory.mktemp("log") / "server.log").wait_ready()
    client = triton_http.InferenceServerClient(server.http)
    for _ in range(3):
        x = triton_http.InferInput("x", [2], "FP32")
        x.set_data_from_numpy(np.array([2.0, 4.0], dtype=np.float32))
        client.infer("half_plus_two", [x])
    wrong = {"inputs": [{"name": "z", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    url = f"{server.url}/v2/models/half_plus_two/infer"
    assert requests.post(url, json=wrong, timeout=TIMEOUT_S).status_code == 400
    body = {"instances": [1.0]}
    assert requests.post(f"{server.url}/v1/models/half_plus_two:predict", json=body, timeout=TIMEOUT_S).status_code == 200
    yield server
    assert server.stop() == 0, server.log_text()


@pytest.mark.parametrize("accept", FORMATS)
def test_tritons_names(named, accept):
    families = scrape(named, accept)
    assert {name for name in families if name.startswith("nv_")} == TRITON
    assert value(families, "nv_inference_request_success", **MODEL) == 4
    assert value(families, "nv_inference_exec_count", **MODEL) == 4
    failed = {sample.labels["reason"]: sample.value for sample in families["nv_inference_request_failure"].samples}
    assert failed == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 1}
    assert value(families, "nv_inference_pending_request_count", **MODEL) == 0
    total, queue, compute = (
        value(families, f"nv_inference_{part}_duration_us", **MODEL) for part in ("request", "queue", "compute_infer")
    )
    assert total >= queue + compute > 0
    kind = "counter" if accept == "text/plain" else "unknown"
    assert families["nv_inference_count"].type == kind
    # The same counters.
    statistics = triton_http.InferenceServerClient(named.http).get_inference_statistics("half_plus_two")
    (entry,) = statistics["model_stats"]
    assert value(families, "nv_inference_count", **MODEL) == entry["inference_count"]
    assert compute == entry["inference_stats"]["compute_infer"]["ns"] // 1000


@pytest.mark.parametrize("accept", FORMATS)
def test_tensorflow_servings_names(named, accept):
    families = scrape(named, accept)
    assert value(families, ":tensorflow:serving:request_count", model_name="half_plus_two", status="OK") == 1
    latency = families[":tensorflow:serving:request_latency"]
    assert latency.type == "histogram"
    assert "millpond_requests" in {name.removesuffix("_total") for name in families}


def test_names_are_an_option(server):
    for accept in FORMATS:
        names = scrape(server, accept)
        assert not [name for name in names if name.startswith(("nv_", ":tensorflow"))]
