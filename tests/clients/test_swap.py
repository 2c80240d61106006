"""Versions change under load: no request fails, and every answer is that of its version."""

import dataclasses
import threading
import time

import numpy as np
import requests
import tritonclient.grpc
import tritonclient.http

from endpoints import triton_inputs
from millpond import Server, drop_in, publish
from models import stamped

VERSIONS = range(2, 7)
X = np.array([10, 20], np.float32)


@dataclasses.dataclass
class Tally:
    """The answers of one client. Versions are in the order of their first answer."""

    answers: int = 0
    failures: list = dataclasses.field(default_factory=list)
    versions: list = dataclasses.field(default_factory=list)

    def note(self, version: int | None, found: np.ndarray) -> None:
        self.answers += 1
        stamp = int(found[0] - X[0])
        if version is not None and stamp != version or not (found == X + stamp).all():
            self.failures.append(f"version {version} answered {found}")
        if stamp not in self.versions:
            self.versions.append(stamp)


def ask_grpc(server: Server, tally: Tally, stop: threading.Event) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        while not stop.is_set():
            result = client.infer("stamped", triton_inputs(tritonclient.grpc, {"x": X}))
            tally.note(int(result.get_response().model_version), result.as_numpy("y"))


def ask_http(server: Server, tally: Tally, stop: threading.Event) -> None:
    with tritonclient.http.InferenceServerClient(server.http) as client:
        while not stop.is_set():
            result = client.infer("stamped", triton_inputs(tritonclient.http, {"x": X}))
            tally.note(int(result.get_response()["model_version"]), result.as_numpy("y"))


def ask_rest(server: Server, tally: Tally, stop: threading.Event) -> None:
    with requests.Session() as session:
        while not stop.is_set():
            answer = session.post(f"{server.url}/v1/models/stamped:predict", json={"instances": X.tolist()}, timeout=60)
            if answer.status_code != 200:
                tally.failures.append(answer.text)
            else:
                tally.note(None, np.array(answer.json()["predictions"], np.float32))


def guarded(ask, server: Server, tally: Tally, stop: threading.Event) -> None:
    try:
        ask(server, tally, stop)
    except Exception as error:  # noqa: BLE001 - the test counts any failure of a client
        tally.failures.append(repr(error))


def wait_answers(server: Server, version: int, tallies: list[Tally]) -> None:
    """Waits until each client has 25 more answers, the last of them from `version`."""
    counts = [tally.answers for tally in tallies]
    deadline = time.monotonic() + 60
    for tally, count in zip(tallies, counts, strict=True):
        while not tally.failures and (tally.versions[-1:] != [version] or tally.answers < count + 25):
            assert time.monotonic() < deadline, (version, tallies, server.log_text()[-4000:])
            time.sleep(0.02)


def test_swaps_under_load_lose_nothing(serve, tmp_path):
    models = {version: stamped(tmp_path / f"{version}.onnx", version, megabytes=24) for version in [1, *VERSIONS]}
    place = tmp_path / "root" / "stamped"
    publish(models[1], place, 1)
    server = serve(place.parent)
    stop = threading.Event()
    tallies = {ask: Tally() for ask in (ask_grpc, ask_http, ask_rest)}
    threads = [threading.Thread(target=guarded, args=(ask, server, tally, stop)) for ask, tally in tallies.items()]
    for thread in threads:
        thread.start()
    try:
        wait_answers(server, 1, list(tallies.values()))
        for version in VERSIONS:
            # Both forms of a version: published, and another tool's plain file.
            (publish if version % 2 else drop_in)(models[version], place, version)
            server.wait_version("stamped", version)
            wait_answers(server, version, list(tallies.values()))
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    for ask, tally in tallies.items():
        assert tally.failures == [], ask.__name__
        assert tally.answers > 100, f"{ask.__name__}: {tally.answers} answers are not a load"
        assert tally.versions == [1, *VERSIONS], f"{ask.__name__}: each version answered, in order"
    deadline = time.monotonic() + 60
    while any(entry["state"] == "AVAILABLE" for number, entry in server.versions("stamped").items() if number != 6):
        assert time.monotonic() < deadline, server.versions("stamped")
        time.sleep(0.1)


def test_removing_the_newest_version_rolls_back(serve, tmp_path):
    """Deleting a directory rolls back."""
    import shutil

    place = tmp_path / "root" / "stamped"
    for version in (1, 2):
        publish(stamped(tmp_path / f"{version}.onnx", version), place, version)
    server = serve(place.parent)
    server.wait_version("stamped", 2)
    shutil.rmtree(place / "2")
    server.wait_version("stamped", 1)
    answer = requests.post(f"{server.url}/v1/models/stamped:predict", json={"instances": [0.0]}, timeout=60)
    assert answer.json()["predictions"] == [1.0]


def test_two_versions_at_once(serve, tmp_path):
    place = tmp_path / "root" / "stamped"
    for version in (1, 2, 3):
        publish(stamped(tmp_path / f"{version}.onnx", version), place, version)
    server = serve(place.parent, "--versions", "latest:2")

    def ask(path: str) -> requests.Response:
        return requests.post(f"{server.url}/v1/models/stamped{path}:predict", json={"instances": [0.0]}, timeout=60)

    server.wait_version("stamped", 2)
    server.wait_version("stamped", 3)
    assert ask("").json()["predictions"] == [3.0]
    assert ask("/versions/2").json()["predictions"] == [2.0]
    assert ask("/versions/3").json()["predictions"] == [3.0]
    assert ask("/versions/1").status_code == 404
    metadata = requests.get(f"{server.url}/v2/models/stamped", timeout=60).json()
    assert sorted(metadata["versions"]) == ["2", "3"]


def test_equal_parameters_are_read_once(serve, tmp_path):
    """A version that shares its table with the serving version loads without reading it again."""
    import shutil

    place = tmp_path / "root" / "stamped"
    publish(stamped(tmp_path / "one.onnx", 1, megabytes=16), place, 1)
    server = serve(place.parent)
    shutil.copytree(place / "1", place.parent / ".aside")
    (place.parent / ".aside").rename(place / "2")
    server.wait_version("stamped", 2)
    text = requests.get(f"{server.url}/metrics", timeout=60).text
    (line,) = [
        line for line in text.splitlines() if "shared_bytes" in line and 'model="stamped"' in line and line[0] != "#"
    ]
    assert float(line.split()[-1]) >= 15e6
