"""Lists of models that change, labels, version policies, warm-up and batching by files."""

import json
import pathlib
import shutil
import subprocess
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from conftest import VERSION, config_text
from millpond import BINARY, free_ports, publish, run
from model_server import example, fill_spec, refused
from saved_models import half_plus
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import classification_pb2, predict_pb2, prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

X = {"x": np.array([[2.0]], np.float32)}
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def model_config(name: str, base: pathlib.Path, **fields) -> model_server_config_pb2.ModelConfig:
    return model_server_config_pb2.ModelConfig(name=name, base_path=str(base), model_platform="tensorflow", **fields)


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> pathlib.Path:
    """Three versions: y = x / 2 + version."""
    base = tmp_path_factory.mktemp("versions")
    for version in (1, 2, 3):
        half_plus(base / str(version), float(version))
    return base


def test_reload_adds_and_removes(start, saved):
    server = start("--model_name=default", f"--model_base_path={saved['half_plus_two']}").wait_available()
    answer = server.reload(half_plus_two=saved["half_plus_two"], half_plus_three=saved["half_plus_three"])
    assert answer.status.error_code == 0
    assert float(server.predict("half_plus_three", X)["y"][0, 0]) == 4.0
    answer = server.reload(half_plus_three=saved["half_plus_three"])
    assert answer.status.error_code == 0
    server.wait_gone("half_plus_two")
    with pytest.raises(grpc.RpcError) as caught:
        server.predict("half_plus_two", X)
    assert "Servable not found for request: Latest(half_plus_two)" in caught.value.details()


def test_reload_of_a_model_that_does_not_load(start, saved, tmp_path):
    server = start("--model_name=default", f"--model_base_path={saved['half_plus_two']}").wait_available()
    bad = tmp_path / "bad" / "1"
    bad.mkdir(parents=True)
    (bad / "saved_model.pb").write_bytes(b"\xff\xff\xff")
    try:
        answer = server.reload(default=saved["half_plus_two"], bad=bad.parent)
        assert answer.status.error_code != 0
    except grpc.RpcError as error:
        assert error.code() != grpc.StatusCode.UNIMPLEMENTED
    assert float(server.predict("default", X)["y"][0, 0]) == 3.0


@pytest.mark.parametrize(
    "config",
    [
        model_config("", pathlib.Path("/tmp")),
        model_server_config_pb2.ModelConfig(name="nopath", model_platform="tensorflow"),
        model_server_config_pb2.ModelConfig(name="relative", base_path="some/where", model_platform="tensorflow"),
        model_server_config_pb2.ModelConfig(name="platform", base_path="/tmp", model_platform="caffe"),
    ],
    ids=["no name", "no path", "relative path", "platform"],
)
def test_reload_refuses(server, config):
    with pytest.raises(grpc.RpcError) as caught:
        server.reload(one=config)
    assert caught.value.code() in (INVALID, PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
    assert float(server.predict("half_plus_two", X)["y"][0, 0]) == 3.0


def test_version_policy_all(start, versions, tmp_path):
    config = tmp_path / "models.config"
    config.write_text(
        f'model_config_list {{ config {{ name: "m" base_path: "{versions}" model_platform: "tensorflow"\n'
        "  model_version_policy { all {} } } }\n"
    )
    server = start(f"--model_config_file={config}")
    for version in (1, 2, 3):
        server.wait_available("m", version)
        assert float(server.predict("m", X, version=version)["y"][0, 0]) == 1 + version
    assert float(server.predict("m", X)["y"][0, 0]) == 4.0


def test_version_policy_latest(start, versions, tmp_path):
    config = tmp_path / "models.config"
    config.write_text(
        f'model_config_list {{ config {{ name: "m" base_path: "{versions}" model_platform: "tensorflow"\n'
        "  model_version_policy { latest { num_versions: 2 } } } }\n"
    )
    server = start(f"--model_config_file={config}").wait_available("m", 2).wait_available("m", 3)
    assert 1 not in {version for version, state in server.states("m").items() if state == "AVAILABLE"}


def test_specific_versions_and_labels(start, versions, tmp_path):
    config = tmp_path / "models.config"
    entry = (
        'model_config_list {{ config {{ name: "m" base_path: "{}" model_platform: "tensorflow"\n'
        "  model_version_policy {{ specific {{ versions: 1 versions: 3 }} }}\n"
        '  version_labels {{ key: "stable" value: {} }} version_labels {{ key: "canary" value: 3 }} }} }}\n'
    )
    config.write_text(entry.format(versions, 1))
    server = start(
        f"--model_config_file={config}", "--model_config_file_poll_wait_seconds=1",
        "--allow_version_labels_for_unavailable_models=true",
    ).wait_available("m", 1).wait_available("m", 3)  # fmt: skip
    assert float(server.predict("m", X, label="stable")["y"][0, 0]) == 2.0
    assert float(server.predict("m", X, label="canary")["y"][0, 0]) == 4.0
    rest = server.post("m/labels/stable:predict", {"instances": [[2.0]]})
    assert rest.json() == {"predictions": [[2.0]]}
    assert server.get("m/labels/canary").json()["model_version_status"][0]["version"] == "3"
    config.write_text(entry.format(versions, 3))
    deadline = time.monotonic() + 60
    while float(server.predict("m", X, label="stable")["y"][0, 0]) != 4.0:
        assert time.monotonic() < deadline, server.log_text()
        time.sleep(0.1)


def test_a_broken_config_changes_nothing(start, saved, tmp_path):
    config = tmp_path / "models.config"
    config.write_text(config_text(half_plus_two=saved["half_plus_two"]))
    server = start(f"--model_config_file={config}", "--model_config_file_poll_wait_seconds=1").wait_available("half_plus_two")
    config.write_text("model_config_list { config { name: ")
    deadline = time.monotonic() + 60
    while "Error parsing" not in server.log_text():
        assert time.monotonic() < deadline, server.log_text()
        time.sleep(0.1)
    assert float(server.predict("half_plus_two", X)["y"][0, 0]) == 3.0


def test_a_new_version_replaces_the_old(start, versions, tmp_path):
    base = tmp_path / "m"
    shutil.copytree(versions / "1", base / "1")
    server = start("--model_name=m", f"--model_base_path={base}", "--file_system_poll_wait_seconds=1").wait_available("m", 1)
    shutil.copytree(versions / "2", tmp_path / "aside")
    (tmp_path / "aside").rename(base / "2")
    server.wait_available("m", 2)
    assert float(server.predict("m", X)["y"][0, 0]) == 3.0


def test_per_model_batching_parameters(start, saved, tmp_path):
    base = tmp_path / "m"
    shutil.copytree(saved["half_plus_two"], base)
    parameters = "max_batch_size { value: 4 }\nbatch_timeout_micros { value: 1000 }\nallowed_batch_sizes: 2\nallowed_batch_sizes: 4\n"
    (base / f"{VERSION:08}" / "batching_params.pbtxt").write_text(parameters)
    server = start(
        "--model_name=m", f"--model_base_path={base}", "--enable_batching", "--enable_per_model_batching_parameters"
    ).wait_available("m")
    x = np.array([[1.0], [2.0], [4.0]], np.float32)
    np.testing.assert_array_equal(server.predict("m", {"x": x})["y"], x / 2 + 2)


def four_rows(path: pathlib.Path) -> None:
    """y = x / 2 + 2 for batches of four rows and more, as a graph that is compiled for some sizes. Its signature takes any."""

    def run(x):
        # The optimisation of graphs removes a reshape to four rows.
        last = tf.gather(x, [3])
        return {"y": x / 2 + 2 + tf.minimum(tf.reduce_sum(tf.abs(last)), 0.0)}

    module = tf.Module()
    module.run = tf.function(run, input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")])
    tf.saved_model.save(module, str(path), signatures=module.run)


def test_batches_have_allowed_sizes(start, tmp_path):
    four_rows(tmp_path / "m" / "1")
    path = tmp_path / "batching.txt"
    path.write_text("max_batch_size { value: 4 }\nallowed_batch_sizes: 4\npad_variable_length_inputs: true\n")
    flags = ("--model_name=m", f"--model_base_path={tmp_path / 'm'}")
    server = start(*flags, "--enable_batching", f"--batching_parameters_file={path}").wait_available("m")
    for rows in (1, 4, 6):
        x = np.arange(rows, dtype=np.float32).reshape(-1, 1)
        np.testing.assert_array_equal(server.predict("m", {"x": x})["y"], x / 2 + 2)
    log = server.log_text()
    assert f"{path}: pad_variable_length_inputs has no effect" in log
    assert "allowed_batch_sizes" not in log
    plain = start(*flags).wait_available("m")
    refused(lambda: plain.predict("m", X), INVALID, "indices")


def test_bad_batching_parameters(start, saved, tmp_path):
    import subprocess

    from millpond import BINARY, free_ports

    path = tmp_path / "batching.txt"
    path.write_text("max_batch_size { value: 8 }\nallowed_batch_sizes: 4\nallowed_batch_sizes: 2\n")
    done = subprocess.run(
        [str(BINARY), "tfs", f"--port={free_ports()[0]}", "--model_name=m", f"--model_base_path={saved['half_plus_two']}",
         "--enable_batching", f"--batching_parameters_file={path}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "allowed_batch_sizes" in done.stderr


# ---- warm-up


def warmup_file(version: pathlib.Path, *records: prediction_log_pb2.PredictionLog) -> None:
    target = version / "assets.extra" / "tf_serving_warmup_requests"
    target.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(target)) as writer:
        for record in records:
            writer.write(record.SerializeToString())


def predict_record(signature: str = "") -> prediction_log_pb2.PredictionLog:
    request = predict_pb2.PredictRequest()
    fill_spec(request.model_spec, "m", signature)
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(X["x"]))
    return prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))


def classify_record(feature: str = "x") -> prediction_log_pb2.PredictionLog:
    request = classification_pb2.ClassificationRequest()
    fill_spec(request.model_spec, "m", "classify_x_to_y")
    request.input.example_list.examples.append(example({feature: 2.0}))
    return prediction_log_pb2.PredictionLog(classify_log=prediction_log_pb2.ClassifyLog(request=request))


def session_run_record() -> prediction_log_pb2.PredictionLog:
    record = prediction_log_pb2.PredictionLog()
    record.session_run_log.request.model_spec.name = "m"
    return record


@pytest.fixture
def model(saved, tmp_path) -> pathlib.Path:
    base = tmp_path / "m"
    shutil.copytree(saved["half_plus_two"], base)
    return base


def test_warm_up_with_every_kind_of_record(start, model):
    warmup_file(model / f"{VERSION:08}", predict_record(), classify_record(), session_run_record())
    server = start("--model_name=m", f"--model_base_path={model}").wait_available("m")
    assert float(server.predict("m", X)["y"][0, 0]) == 3.0


def test_a_model_of_a_store_has_its_vocabulary_and_warm_up(start, saved, tmp_path):
    """The files beside the graph of a SavedModel are published with it: to a directory, and from there to a store."""
    source = tmp_path / "source"
    shutil.copytree(saved["vocabulary"] / f"{VERSION:08}", source)
    warmup_file(source, predict_record("no_such_signature"))
    published = publish(source, tmp_path / "published" / "words", 1)
    store = (tmp_path / "store" / "words").as_uri()
    assert run("publish", str(published), "--to", store, "--version", "5").stdout == f"{store}/5\n"
    warmed = start("--model_name=words", f"--model_base_path={store}")
    deadline = time.monotonic() + 60
    while "no_such_signature" not in warmed.log_text():
        assert time.monotonic() < deadline, warmed.log_text()
        time.sleep(0.1)
    server = start("--model_name=words", f"--model_base_path={store}", "--enable_model_warmup=false").wait_available("words", 5)
    found = server.predict("words", {"word": np.array([b"green", b"pink"])})
    assert found["id"].tolist() == [1, 3]


def test_a_bad_warm_up_record_is_named(start, model):
    warmup_file(model / f"{VERSION:08}", predict_record(), classify_record("wrong"))
    server = start("--model_name=m", f"--model_base_path={model}")
    deadline = time.monotonic() + 60
    while "recorded warm-up request 1" not in server.log_text():
        assert time.monotonic() < deadline, server.log_text()
        time.sleep(0.1)
    assert "AVAILABLE" not in server.states("m").values()


def test_warm_up_for_another_signature_fails_the_version(start, model):
    warmup_file(model / f"{VERSION:08}", predict_record("no_such_signature"))
    server = start("--model_name=m", f"--model_base_path={model}")
    deadline = time.monotonic() + 60
    while "no_such_signature" not in server.log_text():
        assert time.monotonic() < deadline, server.log_text()
        time.sleep(0.1)
    assert "AVAILABLE" not in server.states("m").values()


def test_warm_up_can_be_switched_off(start, model):
    warmup_file(model / f"{VERSION:08}", predict_record("no_such_signature"))
    server = start("--model_name=m", f"--model_base_path={model}", "--enable_model_warmup=false").wait_available("m")
    assert float(server.predict("m", X)["y"][0, 0]) == 3.0


# ---- flags


@pytest.mark.parametrize(
    "flag",
    [
        "--rest_api_num_threads=8", "--grpc_max_threads=8", "--tensorflow_session_parallelism=1",
        "--tensorflow_intra_op_parallelism=1", "--tensorflow_inter_op_parallelism=1", "--num_load_threads=2",
        "--num_unload_threads=2", "--max_num_load_retries=1", "--load_retry_interval_micros=1000",
        "--flush_filesystem_caches=false", "--saved_model_tags=serve", "--num_request_iterations_for_warmup=2",
        "--per_process_gpu_memory_fraction=0.5", "--enable_profiler=false",
        "--remove_unused_fields_from_bundle_metagraph=false", "--enable_grpc_healthcheck_service=true",
        "--enable_signature_method_name_check=true", "--file_system_poll_wait_seconds=0",
        "--noenable_model_warmup", "--enable_serialization_as_tensor_content=true",
    ],
)  # fmt: skip
def test_flags_are_accepted(start, saved, flag):
    server = start("--model_name=default", f"--model_base_path={saved['half_plus_two']}", flag)
    server.wait_available()
    assert float(server.predict("default", X)["y"][0, 0]) == 3.0


@pytest.fixture
def graphs(saved, tmp_path) -> pathlib.Path:
    """A model whose second graph has the tags "serve" and "gpu", and no graph for "serve" alone."""
    base = tmp_path / "graphs"
    shutil.copytree(saved["half_plus_two"], base)
    (version,) = (path for path in base.iterdir() if path.is_dir())
    file = version / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    model.meta_graphs.add().CopyFrom(model.meta_graphs[0])
    model.meta_graphs[0].meta_info_def.tags[:] = ["train"]
    model.meta_graphs[1].meta_info_def.tags[:] = ["serve", "gpu"]
    file.write_bytes(model.SerializeToString())
    return base


@pytest.mark.parametrize("tags", ["serve,gpu", "gpu,serve", "train"])
def test_tags_select_a_graph(start, graphs, tags):
    server = start("--model_name=m", f"--model_base_path={graphs}", f"--saved_model_tags={tags}")
    server.wait_available("m")
    assert float(server.predict("m", X)["y"][0, 0]) == 3.0


def test_a_graph_without_these_tags_is_refused(start, graphs):
    server = start("--model_name=m", f"--model_base_path={graphs}")
    deadline = time.monotonic() + 60
    while "{train}, {serve, gpu}" not in server.log_text():
        assert time.monotonic() < deadline, server.log_text()
        time.sleep(0.1)
    assert "--saved_model_tags" in server.log_text()
    assert "AVAILABLE" not in server.states("m").values()


def test_an_unknown_flag_is_an_error():
    done = subprocess.run([str(BINARY), "tfs", "--no_such_flag=1"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "no_such_flag" in done.stderr


def ssl_file(path: pathlib.Path, key: str, certificate: str) -> pathlib.Path:
    escaped = [json.dumps(text) for text in (key, certificate)]
    path.write_text(f"server_key: {escaped[0]}\nserver_cert: {escaped[1]}\nclient_verify: false\n")
    return path


def test_the_ssl_file_encrypts_grpc(start, saved, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    file = ssl_file(tmp_path / "ssl.txt", key.read_text(), certificate.read_text())
    server = start("--model_name=m", f"--model_base_path={saved['half_plus_two']}", f"--ssl_config_file={file}")
    server.wait_available("m")
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    with grpc.secure_channel(server.address, credentials) as channel:
        answer = server.predict_response("m", X, channel=channel)
    assert float(tf.make_ndarray(answer.outputs["y"])[0, 0]) == 3.0


def test_a_broken_certificate_is_named(tmp_path, saved):
    file = ssl_file(tmp_path / "ssl.txt", "k", "c")
    done = subprocess.run(
        [str(BINARY), "tfs", f"--port={free_ports()[0]}", f"--model_base_path={saved['half_plus_two']}", f"--ssl_config_file={file}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "server_cert" in done.stderr


def test_method_names_are_checked_on_request(start, saved):
    server = start(
        "--model_name=default", f"--model_base_path={saved['half_plus_two']}", "--enable_signature_method_name_check"
    ).wait_available()
    refused(lambda: server.classify("default", [{"x": 2.0}], "regress_x_to_y"), INVALID, "method_name")
