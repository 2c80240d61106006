"""`millpond verify` sends recorded requests of every kind to two servers and compares the answers."""

import json
import shutil
import subprocess

import tensorflow as tf
from millpond import BINARY
from model_server import example, fill_input, fill_spec
from test_configuration import classify_record, predict_record, session_run_record
from tensorflow_serving.apis import inference_pb2, prediction_log_pb2, regression_pb2


def regress_record() -> prediction_log_pb2.PredictionLog:
    request = regression_pb2.RegressionRequest()
    fill_spec(request.model_spec, "m", "regress_x_to_y")
    request.input.example_list.examples.append(example({"x": 2.0}))
    return prediction_log_pb2.PredictionLog(regress_log=prediction_log_pb2.RegressLog(request=request))


def multi_inference_record() -> prediction_log_pb2.PredictionLog:
    request = inference_pb2.MultiInferenceRequest()
    for method in ("classify", "regress"):
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        fill_spec(task.model_spec, "m", f"{method}_x_to_y")
    fill_input(request.input, [{"x": 2.0}, {"x": 5.0}], None)
    log = prediction_log_pb2.MultiInferenceLog(request=request)
    return prediction_log_pb2.PredictionLog(multi_inference_log=log)


def verify(tmp_path, ours, right) -> tuple[int, dict]:
    requests, report = tmp_path / "requests.tfrecord", tmp_path / "report.json"
    kinds = [predict_record(), classify_record(), regress_record(), multi_inference_record(), session_run_record()]
    with tf.io.TFRecordWriter(str(requests)) as writer:
        for record in kinds:
            writer.write(record.SerializeToString())
    command = [BINARY, "verify", "--server", ours.address, "--against", right.address, "--requests", requests]
    command += ["--duration", "400ms", "--rounds", "1", "--json", report]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert report.exists(), done.stderr
    return done.returncode, json.loads(report.read_text())


def test_every_kind_of_request_is_compared(start, saved, tmp_path):
    servers = []
    for name in ("half_plus_two", "half_plus_three"):
        base = tmp_path / name / "m"
        shutil.copytree(saved["half_plus_two"], base)
        servers.append(base)
    right = start("--model_name=m", f"--model_base_path={servers[0]}").wait_available("m")
    same = start("--model_name=m", f"--model_base_path={servers[1]}").wait_available("m")
    code, report = verify(tmp_path, same, right)
    assert (code, report["compared"], report["differing"], report["skipped"]) == (0, 4, 0, 1), report
    for side in ("server", "against"):
        assert report[side]["latency"]["n"] > 0
        assert (report[side]["failed"], report[side]["wrong"]) == (0, 0)

