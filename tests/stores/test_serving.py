"""Models served from an S3 server: bytes, listings, interruptions, damage, and missing networks."""

import contextlib
import os
import pathlib
import signal
import subprocess

import pytest
import requests
from disks import small_disk
from millpond import BINARY, REPOSITORY, Server, free_ports, run, wait_for
from stored_models import URL, layered, stamp, upload

MIB = 1 << 20


def metric(server: Server, name: str) -> float:
    """Returns the sum of a metric over its labels."""
    lines = requests.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    values = [line.rsplit(" ", 1)[1] for line in lines if line.split("{")[0].split(" ")[0] == name]
    assert values, name
    return sum(map(float, values))


def ready(server: Server) -> tuple[int, dict]:
    """Returns the answer of the readiness probe; status 0 without one."""
    with contextlib.suppress(requests.ConnectionError, requests.Timeout):
        answer = requests.get(f"{server.url}/readyz", timeout=60)
        return answer.status_code, answer.json()
    return 0, {}


def status(server: Server, name: str) -> str:
    return run("models", "status", name, "--url", server.url, check=False).stdout


def wait_status(server: Server, name: str, text: str) -> str:
    return wait_for(lambda: status(server, name), lambda found: text in found, why=server.log_text)


def test_a_new_version_fetches_what_changed(s3, serve, tmp_path):
    seeds = list(range(20))
    upload(tmp_path, "m", 1, seeds)
    server = serve(URL)
    assert stamp(server, "m") == 1
    whole = len(s3.get("models/m/1/weights.bin"))
    s3.reset()
    upload(tmp_path, "m", 2, [*seeds[:18], 98, 99])
    server.wait_version("m", 2)
    assert stamp(server, "m") == 2
    wait_for(lambda: s3.counts.bytes_read, lambda count: count > 0.1 * whole)
    assert s3.counts.bytes_read <= 0.12 * whole, (s3.counts, whole)
    assert metric(server, "millpond_store_reused_bytes_total") >= 18 * MIB


def test_a_hundred_models_share_a_listing(s3, serve, tmp_path):
    model = layered(tmp_path / "m.onnx", 1, [1], kib=4)
    local = pathlib.Path(run("publish", str(model), "--to", str(tmp_path / "local/m")).stdout.strip())
    files = {path.name: path.read_bytes() for path in local.iterdir()}
    for at in range(100):
        for name, content in files.items():
            s3.put(f"models/m{at:02}/1/{name}", content)
    s3.reset()
    server = serve(URL, "--pool", "256MiB")
    assert [stamp(server, f"m{at:02}") for at in (0, 50, 99)] == [1, 1, 1]
    wait_for(lambda: metric(server, "millpond_store_lists_total"), lambda count: count >= 4)
    # A listing is one request. Nothing else is requested if nothing changed.
    # Listings continue between two readings.
    before = s3.counts.lists
    listings, gets = metric(server, "millpond_store_lists_total"), s3.counts.gets
    assert before - 1 <= listings <= s3.counts.lists
    wait_for(lambda: s3.counts.lists, lambda count: count > listings)
    assert s3.counts.gets == gets
    # The pauses of a day are tested in mirror/pace.rs: at most 1,500 listings.


def test_half_an_upload_never_serves(s3, serve, tmp_path):
    upload(tmp_path, "m", 1, [1])
    server = serve(URL)
    local = layered(tmp_path / "m.onnx", 2, [2])
    version = pathlib.Path(run("publish", str(local), "--to", str(tmp_path / "local/m")).stdout.strip())
    for name in ("model.onnx", "weights.bin"):
        s3.put(f"models/m/2/{name}", (version / name).read_bytes())
    lists = s3.counts.lists
    wait_for(lambda: s3.counts.lists, lambda count: count >= lists + 3)
    assert list(server.versions("m")) == [1] and stamp(server, "m") == 1
    # A manifest alone does not make it complete either.
    weights = s3.get("models/m/2/weights.bin")
    s3.put("models/m/2/weights.bin", weights[: len(weights) // 2])
    s3.put("models/m/2/millpond.json", (version / "millpond.json").read_bytes())
    lists = s3.counts.lists
    wait_for(lambda: s3.counts.lists, lambda count: count >= lists + 3)
    assert list(server.versions("m")) == [1]
    s3.put("models/m/2/weights.bin", weights)
    server.wait_version("m", 2)
    assert stamp(server, "m") == 2


def test_a_killed_fetch_continues(s3, serve, tmp_path):
    upload(tmp_path, "m", 1, list(range(12)), kib=8 * 1024)
    whole = sum(len(s3.get(key)) for key in s3.objects("models/m/1/"))
    s3.reset()
    s3.hold_after(whole // 2)
    server = serve(URL, ready=False)

    def journaled() -> int:
        journals = (tmp_path / "cache/stores").glob("*/staging/m/1.journal")
        lines = [line.split(" ") for journal in journals for line in journal.read_text().splitlines()[1:]]
        return sum(int(end) - int(start) for start, end, _ in lines)

    # One part can be missing in the journal: two are made durable together.
    wait_for(journaled, lambda count: count >= whole // 2 - 8 * MIB, why=server.log_text)
    # No part is on its way any more, and none can begin.
    wait_for(lambda: s3.sending, lambda count: count == 0 and s3.counts.bytes_read >= whole // 2, why=server.log_text)
    wait_for(journaled, lambda count: count >= s3.counts.bytes_read - 9 * MIB, why=server.log_text)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    assert s3.counts.bytes_read < 0.9 * whole, "it was killed in the middle"
    s3.release()
    server = serve(URL)
    assert stamp(server, "m") == 1
    assert 0.99 * whole <= s3.counts.bytes_read <= 1.1 * whole, (s3.counts, whole)


def test_a_restart_needs_no_network(s3, serve, tmp_path, monkeypatch):
    upload(tmp_path, "m", 1, [1])
    assert serve(URL).stop() == 0
    port, _ = free_ports()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    server = serve(URL)
    assert stamp(server, "m") == 1 and ready(server) == (200, {"ready": True})


def test_a_damaged_copy_is_fetched_again(s3, serve, tmp_path):
    upload(tmp_path, "m", 1, [1, 2])
    assert serve(URL).stop() == 0
    (weights,) = (tmp_path / "cache/stores").glob("*/models/m/1/weights.bin")
    content = bytearray(weights.read_bytes())
    content[MIB // 2] ^= 1
    weights.write_bytes(content)
    server = serve(URL, ready=False)
    wait_for(lambda: ready(server), lambda found: found[0] > 0, why=server.log_text)
    server.wait_version("m", 1)
    assert stamp(server, "m") == 1
    assert "its copy is damaged and is fetched again" in server.log_text(), server.log_text()


def test_recorded_requests_of_a_model_are_copied(s3, serve, tmp_path):
    upload(tmp_path, "m", 1, [1])
    wrong = b'{"inputs": [{"name": "wrong_input", "datatype": "FP32", "shape": [1], "data": [1.0]}]}'
    s3.put("models/m/warmup/one.json", wrong)
    server = serve(URL, ready=False)
    # The version is not served, because a recorded request fails.
    wait_status(server, "m", "wrong_input")
    s3.delete("models/m/warmup/one.json")
    upload(tmp_path, "m", 2, [1])
    server.wait_version("m", 2)
    assert stamp(server, "m") == 2


def test_a_flipped_byte_is_refused_and_named(s3, serve, tmp_path):
    upload(tmp_path, "m", 1, [1, 2])
    server = serve(URL)
    local = layered(tmp_path / "m.onnx", 2, [1, 3])
    version = pathlib.Path(run("publish", str(local), "--to", str(tmp_path / "local/m")).stdout.strip())
    weights = bytearray((version / "weights.bin").read_bytes())
    weights[MIB + MIB // 2] ^= 1
    s3.put("models/m/2/weights.bin", bytes(weights))
    s3.put("models/m/2/model.onnx", (version / "model.onnx").read_bytes())
    s3.put("models/m/2/millpond.json", (version / "millpond.json").read_bytes())
    found = wait_status(server, "m", "version 2 cannot be copied")
    assert 'tensor "layer1" does not have the hash of the manifest' in found, found
    assert list(server.versions("m")) == [1] and stamp(server, "m") == 1
    # Other parts of the version may still have been on their way.
    lists = s3.counts.lists
    wait_for(lambda: s3.counts.lists, lambda count: count >= lists + 2)
    gets, lists = s3.counts.gets, s3.counts.lists
    wait_for(lambda: s3.counts.lists, lambda count: count >= lists + 2)
    assert s3.counts.gets == gets, "it is not fetched again"
    assert "version 2 cannot be copied" in status(server, "m"), "the reason stays"
    upload(tmp_path, "m", 3, [1, 3])
    server.wait_version("m", 3)
    wait_for(lambda: status(server, "m"), lambda found: "cannot be copied" not in found)


def test_wrong_credentials_are_named(s3, serve, tmp_path, monkeypatch):
    upload(tmp_path, "m", 1, [1])
    assert serve(URL).stop() == 0
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    server = serve(URL)
    found = wait_status(server, "m", "SignatureDoesNotMatch")
    assert "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in found and "ready" in found, found
    assert stamp(server, "m") == 1 and ready(server)[0] == 200, "the copy serves on"
    # Without a copy, the start fails with the reason.
    refused = serve(f"x={URL}/m", ready=False)
    assert refused.process.wait(120) == 3, refused.log_text()
    assert "SignatureDoesNotMatch" in refused.log_text().splitlines()[-1], refused.log_text()


def test_probes_and_signals_have_answers_during_the_first_copy(s3, serve, tmp_path):
    upload(tmp_path, "m", 1, list(range(8)), kib=8 * 1024)
    server = serve(URL, "--load-rate", "2MB/s", ready=False)
    code, body = wait_for(lambda: ready(server), lambda found: found[0] != 0, why=server.log_text)
    assert code == 503 and f"the models of {URL} are being copied for the first time" in body["error"], body
    assert requests.get(f"{server.url}/livez", timeout=60).status_code == 200
    wait_for(lambda: metric(server, "millpond_store_fetched_bytes_total"), lambda count: count > 0)
    assert server.infer("m", [1.0]).status_code in (404, 503)
    assert ready(server)[0] == 503
    assert server.stop() == 0, server.log_text()
    server = serve(URL)
    assert stamp(server, "m") == 1 and ready(server) == (200, {"ready": True})


@pytest.fixture
def small_cache(tmp_path):
    """Mounts a file system of 24 MiB as the cache of the test's servers."""
    with small_disk(tmp_path / "cache", "24m") as path:
        yield path


def test_a_full_disk_keeps_the_old_version(s3, serve, tmp_path, small_cache):
    upload(tmp_path, "m", 1, [1], kib=8 * 1024)
    server = serve(URL)
    upload(tmp_path, "m", 2, [2, 3], kib=10 * 1024)
    found = wait_status(server, "m", "is full")
    assert "--store-cache" in found and "--cache-dir" in found and str(small_cache) in found, found
    assert stamp(server, "m") == 1
    # Nothing of it stays on the disk.
    wait_for(lambda: list(small_cache.glob("stores/*/staging/m/*")), lambda found: not found, why=server.log_text)
    upload(tmp_path, "m", 3, [4, 5], kib=4 * 1024)
    server.wait_version("m", 3)
    assert stamp(server, "m") == 3
    # Before the disk is unmounted.
    assert server.stop() == 0


def test_a_list_of_tensorflow_serving_names_a_store(s3, tmp_path):
    upload(tmp_path, "m", 1, [1])
    config = tmp_path / "models.config"
    config.write_text(
        f"model_config_list {{ config {{ name: 'm' base_path: '{URL}/m' model_platform: 'onnx' }} }}"
    )
    rest, port = free_ports()
    flags = [f"--port={port}", f"--rest_api_port={rest}", f"--model_config_file={config}"]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(BINARY), "tfs", *flags, "--", "--host", "127.0.0.1", "--cache-dir", str(tmp_path / "cache")],
            cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT, env={**os.environ},
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{rest}/v1/models/m"

        def answer():
            with contextlib.suppress(requests.ConnectionError, requests.Timeout):
                return requests.post(f"{url}:predict", json={"instances": [1.0]}, timeout=60)
            return None

        # It listens once the model serves.
        found = wait_for(answer, lambda found: found is not None, why=log.read_text)
        assert found.status_code == 200 and found.json() == {"predictions": [2.0]}, found.text
        upload(tmp_path, "m", 2, [1])
        wait_for(answer, lambda found: found.json() == {"predictions": [3.0]}, why=log.read_text)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
