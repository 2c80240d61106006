"""`millpond publish --to s3://...` and `millpond models diff`."""

import json
import signal
import subprocess
import time

import pytest
from millpond import BINARY, run
from stored_models import URL, layered, upload


def test_a_version_is_uploaded_with_its_manifest_last(s3, tmp_path):
    # More than one part of a multipart upload.
    assert upload(tmp_path, "m", 7, [1, 2], kib=6 * 1024) == f"{URL}/m/7"
    keys = [key for key in s3.counts.keys if key.startswith("models/m/7/")]
    assert keys[-1] == "models/m/7/millpond.json", keys
    assert sorted(s3.objects()) == [f"models/m/7/{name}" for name in ("millpond.json", "model.onnx", "weights.bin")]
    manifest = json.loads(s3.get("models/m/7/millpond.json"))
    assert manifest["weights"]["bytes"] == len(s3.get("models/m/7/weights.bin"))
    assert not list((tmp_path / "scratch/publish").iterdir()), "the version is removed here"


def test_numbers_follow_and_are_never_replaced(s3, tmp_path):
    model = layered(tmp_path / "m.onnx", 1, [1], kib=16)
    publish = ["publish", str(model), "--to", f"{URL}/m"]
    assert run(*publish).stdout == f"{URL}/m/1\n"
    assert run(*publish).stdout == f"{URL}/m/2\n"
    before = s3.get("models/m/2/millpond.json")
    s3.reset()
    refused = run(*publish, "--version", "2", check=False)
    assert refused.returncode == 1 and "version 2 exists" in refused.stderr, refused
    assert s3.counts.puts == 0, "it is refused before anything is sent"
    assert s3.get("models/m/2/millpond.json") == before
    root = run("publish", str(model), "--to", URL, check=False)
    assert root.returncode == 2 and "is a directory of models (m, 1 in all)" in root.stderr, root
    number = run("publish", str(model), "--to", f"{URL}/m/3", check=False)
    assert number.returncode == 2 and "--version 3" in number.stderr, number


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("AWS_ACCESS_KEY_ID", "AKIAWRONG", "InvalidAccessKeyId"),
        ("AWS_SECRET_ACCESS_KEY", "wrong", "SignatureDoesNotMatch"),
    ],
)
def test_refused_credentials_are_named(s3, tmp_path, monkeypatch, name, value, reason):
    model = layered(tmp_path / "m.onnx", 1, [1], kib=16)
    monkeypatch.setenv(name, value)
    refused = run("publish", str(model), "--to", f"{URL}/m", check=False)
    assert refused.returncode == 1, refused
    assert reason in refused.stderr and "check AWS_ACCESS_KEY_ID" in refused.stderr, refused.stderr
    assert "<" not in refused.stderr and len(refused.stderr) < 600, refused.stderr


def test_a_missing_bucket_is_named(s3, tmp_path):
    model = layered(tmp_path / "m.onnx", 1, [1], kib=16)
    refused = run("publish", str(model), "--to", "s3://other/models/m", check=False)
    assert refused.returncode == 1 and "NoSuchBucket" in refused.stderr, refused
    assert "check bucket" in refused.stderr


def test_versions_are_compared(s3, tmp_path):
    seeds = list(range(10))
    first = upload(tmp_path, "m", 1, seeds, kib=256)
    second = upload(tmp_path, "m", 2, [*seeds[:9], 99], kib=256)
    local = run("publish", str(tmp_path / "m-1.onnx"), "--to", str(tmp_path / "local/m")).stdout.strip()
    s3.reset()
    found = json.loads(run("models", "diff", local, second, "--json").stdout)
    assert s3.counts.bytes_read < 100_000, "the manifest is all that is read"
    assert [entry["name"] for entry in found["changed"]] == ["layer9"], found
    assert (found["added"], found["removed"]) == ([], [])
    assert found["changed"][0]["bytes"] == 256 * 1024 and found["changed"][0]["fetched"]
    assert found["equal"]["tensors"] == 9
    assert 256 * 1024 < found["fetch"]["bytes"] < 300 * 1024
    shown = run("models", "diff", first, second).stdout
    assert "changed  layer9  float32 [1024, 64]" in shown and "equal:  9 tensors" in shown, shown
    same = json.loads(run("models", "diff", first, local, "--json").stdout)
    assert same["changed"] == [] and same["graph_equal"], same
    missing = run("models", "diff", first, f"{URL}/m/9", check=False)
    assert missing.returncode == 1 and "is not a published version" in missing.stderr, missing
    nothing = run("models", "diff", str(tmp_path), first, check=False)
    assert nothing.returncode == 1 and "is not a published version" in nothing.stderr, nothing


def test_a_publisher_that_died_does_not_block_the_next_number(s3, tmp_path):
    model = layered(tmp_path / "m.onnx", 1, [1], kib=16)
    s3.put("models/m/.claim-1", b"claimed")
    refused = run("publish", str(model), "--to", f"{URL}/m", "--version", "1", check=False)
    assert refused.returncode == 1 and "delete .claim-1" in refused.stderr, refused
    assert run("publish", str(model), "--to", f"{URL}/m").stdout == f"{URL}/m/2\n"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_removes_what_was_uploaded(s3, tmp_path, stop):
    model = layered(tmp_path / "m.onnx", 1, [1, 2], kib=6 * 1024)
    command = [str(BINARY), "publish", str(model), "--to", f"{URL}/m", "--rate", "500KB"]
    publisher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while "models/m/1/model.onnx" not in s3.objects():
        assert publisher.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    publisher.send_signal(stop)
    _, told = publisher.communicate(timeout=60)
    assert publisher.returncode == 1 and "the upload was stopped" in told, told
    assert not list(s3.objects()), "no object and no claim is left"
