"""`millpond tfs`, started with TensorFlow Serving's flags."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time

import grpc
import numpy as np
import requests
import tensorflow as tf
from millpond import BINARY, REPOSITORY, free_ports
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
Arrays = dict[str, np.ndarray]


class ModelServer:
    """One server. Calls go through the stubs of tensorflow-serving-api."""

    def __init__(self, *flags: str, directory: pathlib.Path, program: tuple[str, ...] = (str(BINARY), "tfs")):
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "server.log"
        self.rest_port, self.port = free_ports()
        self.url = f"http://127.0.0.1:{self.rest_port}/v1/models"
        self.address = f"127.0.0.1:{self.port}"
        command = [*program, f"--port={self.port}", f"--rest_api_port={self.rest_port}", *flags]
        environment = {**os.environ, "XDG_DATA_HOME": str(directory / "data"), "MILLPOND_CACHE_DIR": str(directory / "cache")}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        self.channel = grpc.insecure_channel(self.address)

    def stub(self, channel: grpc.Channel | None = None) -> prediction_service_pb2_grpc.PredictionServiceStub:
        return prediction_service_pb2_grpc.PredictionServiceStub(channel or self.channel)

    def models(self) -> model_service_pb2_grpc.ModelServiceStub:
        return model_service_pb2_grpc.ModelServiceStub(self.channel)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_available(self, model: str = "default", version: int | None = None, timeout_s: float = TIMEOUT_S) -> "ModelServer":
        """Waits until a version of `model` is AVAILABLE."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log_text()}"
            states = self.states(model)
            if "AVAILABLE" in (states.values() if version is None else [states.get(version)]):
                return self
            time.sleep(0.05)
        raise AssertionError(f"{model} is not available: {self.states(model)}\n{self.log_text()[-4000:]}")

    def wait_gone(self, model: str, timeout_s: float = 60) -> None:
        """Waits until `model` has no version that serves."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and "AVAILABLE" in self.states(model).values():
            time.sleep(0.05)
        assert "AVAILABLE" not in self.states(model).values()

    def states(self, model: str) -> dict[int, str]:
        with contextlib.suppress(requests.ConnectionError):
            answer = requests.get(f"{self.url}/{model}", timeout=60)
            if answer.status_code == 200:
                return {int(entry["version"]): entry["state"] for entry in answer.json()["model_version_status"]}
        return {}

    def predict(self, model: str, inputs: Arrays, signature: str = "", outputs: tuple[str, ...] = (), **choice) -> Arrays:
        answer = self.predict_response(model, inputs, signature, outputs, **choice)
        return {name: tf.make_ndarray(tensor) for name, tensor in answer.outputs.items()}

    def predict_response(
        self, model: str, inputs: Arrays, signature: str = "", outputs: tuple[str, ...] = (), channel=None, **choice
    ) -> predict_pb2.PredictResponse:
        request = predict_pb2.PredictRequest(output_filter=outputs)
        fill_spec(request.model_spec, model, signature, **choice)
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        return self.stub(channel).Predict(request, timeout=TIMEOUT_S)

    def classify(self, model: str, examples: list, signature: str = "", context=None, **choice):
        request = classification_pb2.ClassificationRequest()
        fill_spec(request.model_spec, model, signature, **choice)
        fill_input(request.input, examples, context)
        return self.stub().Classify(request, timeout=TIMEOUT_S)

    def regress(self, model: str, examples: list, signature: str = "", context=None, **choice):
        request = regression_pb2.RegressionRequest()
        fill_spec(request.model_spec, model, signature, **choice)
        fill_input(request.input, examples, context)
        return self.stub().Regress(request, timeout=TIMEOUT_S)

    def multi_inference(self, tasks: list[tuple[str, str, str]], examples: list):
        """Runs tasks of (model, signature, "classify" or "regress")."""
        request = inference_pb2.MultiInferenceRequest()
        for model, signature, method in tasks:
            task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
            fill_spec(task.model_spec, model, signature)
        fill_input(request.input, examples, None)
        return self.stub().MultiInference(request, timeout=TIMEOUT_S)

    def metadata(self, model: str, *fields: str, **choice) -> get_model_metadata_pb2.GetModelMetadataResponse:
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
        fill_spec(request.model_spec, model, "", **choice)
        return self.stub().GetModelMetadata(request, timeout=TIMEOUT_S)

    def status(self, model: str, **choice) -> get_model_status_pb2.GetModelStatusResponse:
        request = get_model_status_pb2.GetModelStatusRequest()
        fill_spec(request.model_spec, model, "", **choice)
        return self.models().GetModelStatus(request, timeout=TIMEOUT_S)

    def reload(self, **models: pathlib.Path | model_server_config_pb2.ModelConfig):
        """Replaces the list of models, each a directory or a whole ModelConfig."""
        request = model_management_pb2.ReloadConfigRequest()
        entries = request.config.model_config_list.config
        for name, value in models.items():
            if isinstance(value, model_server_config_pb2.ModelConfig):
                entries.add().CopyFrom(value)
            else:
                entries.add(name=name, base_path=str(value), model_platform="tensorflow")
        return self.models().HandleReloadConfigRequest(request, timeout=TIMEOUT_S)

    def post(self, path: str, body, **options) -> requests.Response:
        """Sends `body` (an object, or text as it is) to the REST API."""
        key = "data" if isinstance(body, str | bytes) else "json"
        return requests.post(f"{self.url}/{path}", **{key: body}, timeout=TIMEOUT_S, **options)

    def get(self, path: str) -> requests.Response:
        return requests.get(f"{self.url}/{path}", timeout=TIMEOUT_S)

    def stop(self) -> int:
        self.channel.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still running after SIGTERM:\n{self.log_text()}") from None


def fill_spec(spec, model: str, signature: str, version: int | None = None, label: str | None = None) -> None:
    spec.name = model
    spec.signature_name = signature
    if version is not None:
        spec.version.value = version
    if label is not None:
        spec.version_label = label


def fill_input(message, examples: list, context) -> None:
    if context is None:
        message.example_list.examples.extend(example(one) for one in examples)
        return
    message.example_list_with_context.context.CopyFrom(example(context))
    message.example_list_with_context.examples.extend(example(one) for one in examples)


def example(features: dict) -> tf.train.Example:
    """Builds a tf.Example: floats, integers, or strings, one or a list of them."""
    message = tf.train.Example()
    for name, values in features.items():
        values = values if isinstance(values, list) else [values]
        feature = message.features.feature[name]
        if any(isinstance(value, str | bytes) for value in values):
            feature.bytes_list.value.extend(value.encode() if isinstance(value, str) else value for value in values)
        elif any(isinstance(value, float) for value in values):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return message


def refused(call, code: grpc.StatusCode, *words: str) -> None:
    """Checks that a call fails with a status and words in its message."""
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, (error.code(), error.details())
        for word in words:
            assert word in error.details(), error.details()
        return
    raise AssertionError("the call was not refused")
