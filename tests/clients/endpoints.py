"""One request through each public endpoint, by the endpoint's usual client, unmodified."""

import base64
from collections.abc import Callable

import grpc
import ml_dtypes
import numpy as np
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import np_to_triton_dtype

from millpond import Server
from models import Arrays

REQUEST_TIMEOUT_S = 60
MESSAGE_BYTES_MAX = 1 << 30
GRPC_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
]


def to_triton(array: np.ndarray) -> np.ndarray:
    """Converts strings for the client: arrays of bytes objects."""
    if array.dtype != object:
        return array
    encoded = [text if isinstance(text, bytes) else text.encode() for text in array.ravel()]
    return np.array(encoded, object).reshape(array.shape)


def from_triton(array: np.ndarray) -> np.ndarray:
    if array.dtype != object:
        return array
    decoded = [text.decode() if isinstance(text, bytes) else text for text in array.ravel()]
    return np.array(decoded, object).reshape(array.shape)


def triton_inputs(module, inputs: Arrays, **options) -> list:
    """Returns the client's input objects for a request. `module` is tritonclient.http or .grpc."""
    out = []
    for name, array in inputs.items():
        array = to_triton(array)
        entry = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        entry.set_data_from_numpy(array, **options)
        out.append(entry)
    return out


def oip_http(server: Server, model: str, inputs: Arrays, outputs: list[str], binary: bool) -> Arrays:
    with tritonclient.http.InferenceServerClient(server.http, network_timeout=REQUEST_TIMEOUT_S) as client:
        wanted = [tritonclient.http.InferRequestedOutput(name, binary_data=binary) for name in outputs]
        result = client.infer(model, triton_inputs(tritonclient.http, inputs, binary_data=binary), outputs=wanted)
        return {name: from_triton(result.as_numpy(name)) for name in outputs}


def oip_http_binary(server: Server, model: str, inputs: Arrays, outputs: list[str]) -> Arrays:
    return oip_http(server, model, inputs, outputs, binary=True)


def oip_http_json(server: Server, model: str, inputs: Arrays, outputs: list[str]) -> Arrays:
    return oip_http(server, model, inputs, outputs, binary=False)


def oip_grpc(server: Server, model: str, inputs: Arrays, outputs: list[str]) -> Arrays:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        result = client.infer(model, triton_inputs(tritonclient.grpc, inputs), client_timeout=REQUEST_TIMEOUT_S)
        return {name: from_triton(result.as_numpy(name)) for name in outputs}


def tfs_channel(server: Server) -> grpc.Channel:
    return grpc.insecure_channel(server.grpc, options=GRPC_OPTIONS)


def tfs_grpc(server: Server, model: str, inputs: Arrays, outputs: list[str]) -> Arrays:
    # Importing TensorFlow takes seconds, so only its users import it.
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array, shape=array.shape))
    with tfs_channel(server) as channel:
        answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=REQUEST_TIMEOUT_S)
    return {name: from_triton(tf.make_ndarray(answer.outputs[name])) for name in outputs}


def tfs_rest_column(server: Server, model: str, inputs: Arrays, outputs: list[str]) -> Arrays:
    body = {"inputs": {name: to_json(array) for name, array in inputs.items()}}
    answer = requests.post(f"{server.url}/v1/models/{model}:predict", json=body, timeout=REQUEST_TIMEOUT_S)
    assert answer.status_code == 200, answer.text[:1000]
    found = answer.json()["outputs"]
    # A single output has no name.
    return {name: np.array(found[name] if len(outputs) > 1 else found) for name in outputs}


def to_json(array: np.ndarray):
    if array.dtype == ml_dtypes.bfloat16:
        array = array.astype(np.float32)
    return array.tolist()


def b64(data: bytes) -> dict:
    """Encodes bytes for TensorFlow Serving's JSON."""
    return {"b64": base64.b64encode(data).decode()}


EndpointCall = Callable[[Server, str, Arrays, list[str]], Arrays]

ENDPOINTS: dict[str, EndpointCall] = {
    "oip-http-binary": oip_http_binary,
    "oip-http-json": oip_http_json,
    "oip-grpc": oip_grpc,
    "tfs-grpc": tfs_grpc,
    "tfs-rest": tfs_rest_column,
}

# Limits of a protocol: the Open Inference Protocol's JSON has no 16-bit floats, and its client refuses them.
UNSUPPORTED = {("oip-http-json", "half_precision"), ("oip-http-json", "brain_float")}
