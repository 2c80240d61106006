"""The behaviours of TensorFlow Serving's own end-to-end test."""

import json
import subprocess
import time

import grpc
import numpy as np
import requests
from conftest import VERSION, config_text
from millpond import BINARY, free_ports
from model_server import refused

X = {"x": np.array([2.0], np.float32)}


def check_predict(server, model: str, expected: float, **options) -> None:
    """Predicts x = 2 with and without an output filter."""
    for outputs in (("y",), ()):
        answer = server.predict_response(model, X, outputs=outputs, **options)
        assert list(answer.outputs["y"].float_val) == [expected]
        assert (answer.model_spec.name, answer.model_spec.version.value) == (model, VERSION)
        assert answer.model_spec.signature_name == (options.get("signature") or "serving_default")


def test_get_model_status(server):
    (status,) = server.status("half_plus_two").model_version_status
    assert (status.version, status.state, status.status.error_code) == (VERSION, 30, 0)


def test_get_model_metadata(server):
    answer = server.metadata("half_plus_two", "signature_def")
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("half_plus_two", VERSION)
    assert list(answer.metadata) == ["signature_def"]


def test_classify(server):
    answer = server.classify("half_plus_two", [{"x": 2.0}], "classify_x_to_y")
    ((one,),) = [found.classes for found in answer.result.classifications]
    assert (one.score, one.label) == (3.0, "")
    assert answer.model_spec.signature_name == "classify_x_to_y"
    assert answer.model_spec.version.value == VERSION


def test_regress(server):
    answer = server.regress("half_plus_two", [{"x": 2.0}], "regress_x_to_y")
    assert [found.value for found in answer.result.regressions] == [3.0]
    assert answer.model_spec.signature_name == "regress_x_to_y"


def test_multi_inference(server):
    tasks = [("half_plus_two", "regress_x_to_y", "regress"), ("half_plus_two", "classify_x_to_y", "classify")]
    answer = server.multi_inference(tasks, [{"x": 2.0}])
    assert answer.results[0].regression_result.regressions[0].value == 3.0
    assert answer.results[1].classification_result.classifications[0].classes[0].score == 3.0
    for result, (model, signature, _) in zip(answer.results, tasks, strict=True):
        assert (result.model_spec.name, result.model_spec.signature_name) == (model, signature)
        assert result.model_spec.version.value == VERSION


def test_predict(server):
    check_predict(server, "half_plus_two", 3.0)


def test_predict_with_batching(start, saved, tmp_path):
    parameters = tmp_path / "batching.txt"
    parameters.write_text(
        "max_batch_size { value: 128 }\nbatch_timeout_micros { value: 0 }\n"
        "max_enqueued_batches { value: 1000000 }\nnum_batch_threads { value: 8 }\n"
    )
    server = start(
        "--model_name=default", f"--model_base_path={saved['half_plus_two']}",
        "--enable_batching", f"--batching_parameters_file={parameters}",
    )  # fmt: skip
    check_predict(server.wait_available(), "default", 3.0)


def test_a_bad_model_is_reported(start, tmp_path):
    base = tmp_path / "bad"
    (base / "00000123").mkdir(parents=True)
    (base / "00000123" / "export").write_bytes(b"not a SavedModel")
    server = start("--model_name=default", f"--model_base_path={base}")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            server.predict("default", X)
        except grpc.RpcError as error:
            if "default" in error.details():
                assert error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION)
                return
        time.sleep(0.1)
    raise AssertionError(server.log_text())


def test_good_model_config(server):
    check_predict(server, "half_plus_two", 3.0)
    check_predict(server, "half_plus_three", 4.0)


def test_bad_model_config(tmp_path):
    config = tmp_path / "bad.txt"
    config.write_text("improperly formatted file\n")
    done = subprocess.run(
        [str(BINARY), "tfs", f"--port={free_ports()[0]}", f"--model_config_file={config}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Error parsing text-format tensorflow.serving.ModelServerConfig" in done.stderr
    assert str(config) in done.stderr


def test_the_model_config_is_read_again(start, saved, tmp_path):
    config = tmp_path / "models.config"
    config.write_text(config_text(half_plus_two=saved["half_plus_two"]))
    server = start(f"--model_config_file={config}", "--model_config_file_poll_wait_seconds=1")
    check_predict(server.wait_available("half_plus_two"), "half_plus_two", 3.0)
    config.write_text(config_text(half_plus_three=saved["half_plus_three"]))
    check_predict(server.wait_available("half_plus_three"), "half_plus_three", 4.0)
    server.wait_gone("half_plus_two")


def test_the_model_config_is_not_read_again_without_a_period(start, saved, tmp_path):
    config = tmp_path / "models.config"
    config.write_text(config_text(half_plus_two=saved["half_plus_two"]))
    server = start(f"--model_config_file={config}", "--model_config_file_poll_wait_seconds=0")
    check_predict(server.wait_available("half_plus_two"), "half_plus_two", 3.0)
    config.write_text(config_text(half_plus_three=saved["half_plus_three"]))
    time.sleep(2)
    check_predict(server, "half_plus_two", 3.0)
    assert server.states("half_plus_three") == {}


def test_grpc_channel_arguments(start, saved):
    server = start(
        "--model_name=default", f"--model_base_path={saved['half_plus_two']}",
        "--grpc_channel_arguments=grpc.max_connection_age_ms=2000,grpc.lb_policy_name=grpclb",
    )  # fmt: skip
    check_predict(server.wait_available(), "default", 3.0)


def test_classify_over_rest(server):
    answer = server.post("half_plus_two:classify", {"signature_name": "classify_x_to_y", "examples": [{"x": 2.0}]})
    assert answer.json() == {"results": [[["", 3.0]]]}


def test_regress_over_rest(server):
    answer = server.post("half_plus_two:regress", {"signature_name": "regress_x_to_y", "examples": [{"x": 2.0}]})
    assert answer.json() == {"results": [3.0]}


def test_predict_over_rest(server):
    answer = server.post("half_plus_two:predict", {"instances": [2.0, 3.0, 4.0]})
    assert answer.json() == {"predictions": [3.0, 3.5, 4.0]}


def test_predict_in_columns_over_rest(server):
    answer = server.post("half_plus_two:predict", {"inputs": [2.0, 3.0, 4.0]})
    assert answer.json() == {"outputs": [3.0, 3.5, 4.0]}


def test_status_over_rest(server):
    assert server.get("half_plus_two").json() == {
        "model_version_status": [
            {"version": "123", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
    }


def test_metadata_over_rest(server):
    answer = server.get("half_plus_two/metadata").json()
    assert answer["model_spec"] == {"name": "half_plus_two", "signature_name": "", "version": "123"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    default = signatures["serving_default"]
    assert default["method_name"] == "tensorflow/serving/predict"
    for side, name in (("inputs", "x"), ("outputs", "y")):
        assert list(default[side]) == [name]
        assert default[side][name]["dtype"] == "DT_FLOAT"
        assert default[side][name]["name"] == f"{name}:0"
        assert default[side][name]["tensor_shape"] == {"dim": [], "unknown_rank": True}
    assert sorted(signatures) == ["classify_x_to_y", "regress_x2_to_y3", "regress_x_to_y", "regress_x_to_y2", "serving_default"]
    classify = signatures["classify_x_to_y"]
    assert classify["method_name"] == "tensorflow/serving/classify"
    assert classify["inputs"]["inputs"]["name"] == "tf_example:0"
    assert classify["inputs"]["inputs"]["tensor_shape"] == {"dim": [], "unknown_rank": True}


def test_prometheus_metrics(start, saved, tmp_path):
    config = tmp_path / "monitoring.txt"
    config.write_text('prometheus_config: { enable: true, path: "/monitoring/prometheus/metrics" }\n')
    server = start(
        "--model_name=default", f"--model_base_path={saved['half_plus_two']}", f"--monitoring_config_file={config}"
    ).wait_available()
    server.predict("default", X)
    server.classify("default", [{"x": 2.0}, {"x": 3.0}], "classify_x_to_y")
    text = requests.get(f"http://127.0.0.1:{server.rest_port}/monitoring/prometheus/metrics", timeout=60).text
    assert "# TYPE :tensorflow:serving:request_count counter" in text
    assert any(line.startswith(":tensorflow:serving:request_count{") and 'model_name="default"' in line for line in text.splitlines())
    assert ':tensorflow:serving:request_example_count_total{model="default"} 2' in text.splitlines()
    assert ":tensorflow:serving:batching_session:processed_batch_size_count{} 0" in text.splitlines()


def test_predict_over_a_unix_socket(start, saved, tmp_path):
    path = tmp_path / "grpc.sock"
    server = start(
        "--model_name=default", f"--model_base_path={saved['half_plus_two']}", f"--grpc_socket_path={path}"
    ).wait_available()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        check_predict(server, "default", 3.0, channel=channel)


def test_a_tflite_model_is_refused_with_a_remedy(start, saved, tmp_path):
    base = tmp_path / "lite"
    (base / "00000123").mkdir(parents=True)
    (base / "00000123" / "model.tflite").write_bytes(b"\x1c\0\0\0TFL3" + b"\0" * 64)
    server = start("--model_name=default", f"--model_base_path={base}", "--prefer_tflite_model=true")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and "a TensorFlow Lite model" not in server.log_text():
        time.sleep(0.1)
    assert "a TensorFlow Lite model" in server.log_text()


def test_a_checkpoint_as_saved_model(server):
    check_predict_y(server, "product", 12.0)


def check_predict_y(server, model: str, expected: float, signature: str = "") -> None:
    answer = server.predict_response(model, X, signature)
    assert list(answer.outputs[next(iter(answer.outputs))].float_val) == [expected]


def test_several_signatures(server):
    check_predict_y(server, "two_signatures", 1.0)
    check_predict_y(server, "two_signatures", 2.0, "custom_signature_key")


def test_a_keras_sequential_model(server):
    answer = server.predict("keras_sequential", {"x": np.array([[2.0]], np.float32)})
    np.testing.assert_array_equal(answer["y"], [[2.0]])


def test_the_program_under_tensorflow_servings_name(start, saved, tmp_path):
    link = tmp_path / "tensorflow_model_server"
    link.symlink_to(BINARY)
    server = start("--model_name=default", f"--model_base_path={saved['half_plus_two']}", program=(str(link),))
    check_predict(server.wait_available(), "default", 3.0)


def test_version_of_the_program(tmp_path):
    link = tmp_path / "tensorflow_model_server"
    link.symlink_to(BINARY)
    done = subprocess.run([str(link), "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert "millpond" in done.stdout.lower()


def test_a_missing_model_is_named(server):
    refused(lambda: server.predict("intentionally_missing_model", X), grpc.StatusCode.NOT_FOUND, "Servable not found for request", "intentionally_missing_model")


def test_ovmsclient(server):
    import ovmsclient

    client = ovmsclient.make_grpc_client(server.address)
    np.testing.assert_array_equal(client.predict({"x": np.array([2.0], np.float32)}, "half_plus_two"), [3.0])


def test_the_curl_calls_of_the_documentation(server, tmp_path):
    def curl(*arguments: str) -> dict:
        done = subprocess.run(["curl", "-s", *arguments], capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout)

    url = f"{server.url}/half_plus_two"
    assert curl("-d", '{"instances": [1.0, 2.0, 5.0]}', "-X", "POST", f"{url}:predict") == {"predictions": [2.5, 3.0, 4.5]}
    assert curl("-d", '{"instances": [1.0,2.0,5.0]}', "-X", "POST", f"{url}/versions/123:predict") == {"predictions": [2.5, 3.0, 4.5]}
    body = '{"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}, {"x": 2.0}]}'
    assert curl("-d", body, f"{url}:regress") == {"results": [2.5, 3.0]}
    status = curl(url)["model_version_status"][0]
    assert (status["version"], status["state"]) == ("123", "AVAILABLE")
    assert curl(f"{url}/metadata")["model_spec"]["name"] == "half_plus_two"
    lost = curl("-d", '{"instances": [1.0]}', f"{server.url}/nothing:predict")
    assert "Servable not found for request" in lost["error"]


def test_a_missing_flag_for_the_model_is_explained():
    done = subprocess.run([str(BINARY), "tfs", f"--port={free_ports()[0]}"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "--model_base_path" in done.stderr


