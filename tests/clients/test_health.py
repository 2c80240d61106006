"""gRPC's health and reflection services through grpcio's own clients, and the probes over HTTP."""

import queue
import threading

import grpc
import pytest
import requests
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

TIMEOUT_S = 60
STATUS = health_pb2.HealthCheckResponse.ServingStatus


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel


def check(channel: grpc.Channel, name: str) -> str:
    request = health_pb2.HealthCheckRequest(service=name)
    return STATUS.Name(health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S).status)


@pytest.mark.parametrize(
    "name",
    ["", "half_plus_two", "inference.GRPCInferenceService", "tensorflow.serving.PredictionService"],
)
def test_what_serves_is_serving(channel, name):
    assert check(channel, name) == "SERVING"


def test_an_unknown_name_is_not_found(channel):
    with pytest.raises(grpc.RpcError) as refused:
        check(channel, "half_plus_too")
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    assert 'did you mean "half_plus_two"?' in refused.value.details()


def test_watch_follows_an_unload_and_a_load(serve, tmp_path):
    server = serve(tmp_path / "models")
    statuses = queue.Queue()
    with grpc.insecure_channel(server.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        call = stub.Watch(health_pb2.HealthCheckRequest(service="half_plus_two"))

        def follow() -> None:
            try:
                for response in call:
                    statuses.put(STATUS.Name(response.status))
            except grpc.RpcError as error:
                statuses.put(error.code().name)

        thread = threading.Thread(target=follow)
        thread.start()
        assert statuses.get(timeout=TIMEOUT_S) == "SERVING"
        repository = f"{server.url}/v2/repository/models/half_plus_two"
        assert requests.post(f"{repository}/unload", timeout=TIMEOUT_S).status_code == 200
        assert statuses.get(timeout=TIMEOUT_S) == "NOT_SERVING"
        assert requests.post(f"{repository}/load", timeout=TIMEOUT_S).status_code == 200
        assert statuses.get(timeout=TIMEOUT_S) == "SERVING"
        server.terminate()
        assert statuses.get(timeout=TIMEOUT_S) == "NOT_SERVING"
        assert statuses.get(timeout=TIMEOUT_S) == "UNAVAILABLE"
        thread.join(TIMEOUT_S)


def test_reflection_is_enough_for_a_call(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) == {
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
        "qdrant.Collections",
        "qdrant.Points",
        "qdrant.Qdrant",
        "qdrant.Snapshots",
        "tensorflow.serving.ModelService",
        "tensorflow.serving.PredictionService",
    }
    pool = DescriptorPool(database)
    for name in database.get_services():
        for method in pool.FindServiceByName(name).methods:
            assert method.input_type.fields is not None and method.output_type.fields is not None
    method = pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name["ModelMetadata"]
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    ask = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelMetadata",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    answer = ask(request(name="half_plus_two"), timeout=TIMEOUT_S)
    assert answer.inputs[0].name == "x"
    assert pool.FindMessageTypeByName("tensorflow.TensorProto").fields_by_name["tensor_content"]
    with pytest.raises(KeyError):
        pool.FindMessageTypeByName("inference.Nothing")


def test_readyz_names_the_models_that_do_not_serve(serve, tmp_path):
    root = tmp_path / "models"
    (root / "broken" / "1").mkdir(parents=True)
    (root / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    server = serve(root)
    answer = requests.get(f"{server.url}/readyz", timeout=TIMEOUT_S)
    assert answer.status_code == 503
    assert list(answer.json()["models"]) == ["broken"]
    assert requests.get(f"{server.url}/livez", timeout=TIMEOUT_S).status_code == 200
    with grpc.insecure_channel(server.grpc) as channel:
        assert [check(channel, name) for name in ("", "broken", "half_plus_two")] == [
            "NOT_SERVING", "NOT_SERVING", "SERVING",
        ]  # fmt: skip
    assert server.stop() == 0
    partly = serve(root, "--readiness", "any")
    assert requests.get(f"{partly.url}/readyz", timeout=TIMEOUT_S).json() == {"ready": True}


def test_process_metrics_have_prometheus_names(server):
    text = requests.get(f"{server.url}/metrics", timeout=TIMEOUT_S, headers={"accept": "text/plain"}).text
    names = ("cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "open_fds", "max_fds", "threads",
             "start_time_seconds")  # fmt: skip
    for name in names:
        (line,) = [line for line in text.splitlines() if line.startswith(f"process_{name} ")]
        assert float(line.split()[1]) > 0, line
