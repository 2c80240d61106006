"""Measures Millpond and other model servers with the same small model: requests per second, latency, CPU, swaps.

    serving.py [--json OUT] [--chart OUT.svg] [--seconds S] [--rounds N] [--peers NAME,..] [--smoke]

The model is a network 64-512-512-8 in ONNX, run by ONNX Runtime with one thread; each server has one worker and merges
up to 32 requests. One server runs at a time, and rounds interleave them. wrk sends each server its own JSON body over
HTTP. `cpu_us` is the CPU time of all processes of a server divided by its answers, at 64 clients. `rps_at_p99_10ms` is
the highest rate of a number of clients whose p99 is at most 10 ms. `swap_p999_ratio` is p999 in the 5 s after a swap
divided by that of 5 s without one, both open loop at 40 % of the rate that the same client reaches with 64
connections that wait; null if it cannot swap a model, or if requests failed, whose latency is unknown.

Every peer has its own environment in .cache/serving-peers, with the packages pinned in serving/NAME.txt.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent / "serving"
ROOT = HERE.parents[2]
CACHE = ROOT / ".cache/serving-peers"
CLIENTS = (1, 8, 16, 32, 64, 128)
CLIENTS_MAIN = 64
P99_MAX_MS = 10.0
SWAP_LOAD, SWAP_SECONDS, SWAPS = 0.4, 5, 3
START_TIMEOUT_S, STOP_TIMEOUT_S, INSTALL_TIMEOUT_S = 90, 20, 900
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SIZES = (64, 512, 512, 8)
ROW = [round(0.01 * number - 0.3, 2) for number in range(SIZES[0])]


# ---- the model: two versions with different weights, so that an answer tells which one serves


def write_model(file: pathlib.Path, seed: int) -> list[float]:
    """Writes one version. Returns its answer for ROW."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random, x, answer = np.random.default_rng(seed), "x", np.array([ROW], np.float32)
    nodes, weights, last = [], [], len(SIZES) - 2
    for layer, (inputs, outputs) in enumerate(zip(SIZES, SIZES[1:])):
        matrix = (random.standard_normal((inputs, outputs)) / inputs**0.5).astype(np.float32)
        weights += [numpy_helper.from_array(matrix, f"w{layer}")]
        nodes += [helper.make_node("MatMul", [x, f"w{layer}"], ["y" if layer == last else f"m{layer}"])]
        answer = answer @ matrix
        if layer < last:
            nodes += [helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"])]
            x, answer = f"r{layer}", np.maximum(answer, 0)
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, ["n", SIZES[0]])], [value("y", TensorProto.FLOAT, ["n", SIZES[-1]])]
    graph = helper.make_graph(nodes, "light", *ends, initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, file)
    return answer[0].tolist()


# ---- peers


@dataclasses.dataclass
class Run:
    """One start of a server: where it finds its model, and where it listens."""

    scratch: pathlib.Path
    port: int
    free_ports: list[int]
    program: str

    @property
    def model(self) -> pathlib.Path:
        return self.scratch / "model.onnx"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def python(name: str) -> str:
    return str(CACHE / name / "bin/python")


def start_millpond(run: Run) -> list[str]:
    publish_millpond(run)
    return [run.program, "serve", str(run.scratch / "models"), "--http-port", str(run.port), "--grpc-port", "0",
            "--collections-dir", "none", "--cache-dir", str(run.scratch / "cache"), "--log", "warn",
            "--threads", "1", "--runtime-threads", "1", "--max-batch", "32"]  # fmt: skip


def publish_millpond(run: Run) -> None:
    command = [run.program, "publish", str(run.model), "--to", str(run.scratch / "models/light")]
    subprocess.run(command, check=True, capture_output=True)


def start_mlserver(run: Run) -> list[str]:
    settings = {"host": "127.0.0.1", "http_port": run.port, "grpc_port": run.free_ports[0],
                "metrics_port": run.free_ports[1], "parallel_workers": 0, "debug": False}  # fmt: skip
    model = {"name": "light", "implementation": "mlserver_runtime.Light", "max_batch_size": 32,
             "max_batch_time": 0.001, "parameters": {"uri": str(run.model)}}  # fmt: skip
    (run.scratch / "settings.json").write_text(json.dumps(settings))
    (run.scratch / "model-settings.json").write_text(json.dumps(model))
    main = "from mlserver.cli.main import main; main()"
    return [python("mlserver"), "-c", main, "start", str(run.scratch)]


def start_bentoml(run: Run) -> list[str]:
    return [python("bentoml"), "-m", "bentoml", "serve", "bentoml_service:Light", "--host", "127.0.0.1",
            "--port", str(run.port)]  # fmt: skip


def start_mosec(run: Run) -> list[str]:
    return [python("mosec"), "mosec_server.py", "--address", "127.0.0.1", "--port", str(run.port), "--timeout", "60000"]


OIP_BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, SIZES[0]], "data": ROW}]}


def oip_answer(body: dict) -> list[float]:
    return body["outputs"][0]["data"]


def swap_mlserver(run: Run, _: subprocess.Popen) -> None:
    post(f"{run.url}/v2/repository/models/light/load", {})


@dataclasses.dataclass
class Peer:
    package: str | None
    start: object
    path: str
    body: dict
    answer: object
    # Makes the server take the file of the model anew.
    swap: object = None
    # Reason why the server has no swap.
    no_swap: str = ""


INFER, PREDICT = "/v2/models/light/infer", "/v1/models/light:predict"
PEERS = {
    "millpond": Peer(None, start_millpond, PREDICT, {"instances": [ROW]},
                     lambda body: body["predictions"][0], lambda run, _: publish_millpond(run)),
    "mosec": Peer("mosec", start_mosec, "/inference", {"x": ROW}, lambda body: body["y"],
                  no_swap="workers load the model when they start"),
    "litserve": Peer("litserve", lambda run: [python("litserve"), "litserve_server.py"], "/predict", {"x": ROW},
                     lambda body: body["y"], no_swap="workers load the model when they start"),
    "mlserver": Peer("mlserver", start_mlserver, INFER, OIP_BODY, oip_answer, swap_mlserver),
    "bentoml": Peer("bentoml", start_bentoml, "/predict", {"x": [ROW]}, lambda body: body[0],
                    no_swap="workers load the model when they start"),
    "ray": Peer("ray", lambda run: [python("ray"), "ray_server.py"], PREDICT, {"inputs": {"x": [ROW]}},
                lambda body: body["outputs"][0], lambda _, server: server.send_signal(signal.SIGHUP)),
    "triton": Peer("nvidia-pytriton", lambda run: [python("triton"), "triton_server.py"], INFER,
                   OIP_BODY, oip_answer, no_swap="PyTriton binds a function when it starts"),
}  # fmt: skip


class Failed(Exception):
    """A peer could not be installed, started or measured. The text says why."""


def install(name: str) -> None:
    """Makes the peer's environment anew if its pinned packages changed."""
    pinned, directory = HERE / f"{name}.txt", CACHE / name
    ready = directory / "ready"
    if ready.exists() and ready.read_text() == pinned.read_text():
        return
    print(f"{name}: installing in {directory.relative_to(ROOT)}", flush=True)
    command = [str(ROOT / "scripts/make_venv.sh"), str(directory), sys._base_executable, str(pinned)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise Failed(f"its packages were not installed within {INSTALL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise Failed(f"its packages cannot be installed: {last_line(done.stderr)}")
    ready.write_text(pinned.read_text())


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no message")


# ---- one server


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for listener in sockets:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read()
    return json.loads(text) if text.strip() else {}


class Server:
    """A running peer. Its processes are found by a token in their environment, whatever their parents are."""

    def __init__(self, name: str, scratch: pathlib.Path, program: str):
        ports = free_ports(3)
        self.name, self.peer, self.token = name, PEERS[name], f"PEER_TOKEN={secrets.token_hex(8)}"
        self.run = Run(scratch, ports[0], ports[1:], program)
        self.versions = [write_model(scratch / f"{seed}.onnx", seed) for seed in range(2)]
        self.serving = 0
        shutil.copyfile(scratch / "0.onnx", self.run.model)
        key, token = self.token.split("=")
        environment = {**os.environ, key: token, "PEER_PORT": str(ports[0]), "PEER_MODEL": str(self.run.model),
                       "PEER_FREE_PORTS": ",".join(map(str, ports[1:])), "PEER_SCRATCH": str(scratch),
                       "PYTHONPATH": str(HERE), "BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": str(scratch),
                       "RAY_USAGE_STATS_ENABLED": "0", "ORT_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1",
                       "TMPDIR": str(scratch)}  # fmt: skip
        if name == "triton":
            # Its Python backend must run on the library of the interpreter that its packages were installed for.
            environment["LD_LIBRARY_PATH"] = sysconfig.get_config_var("LIBDIR")
        # These would send requests to the loopback elsewhere.
        environment = {key: value for key, value in environment.items() if not key.lower().endswith("_proxy")}
        self.log = scratch / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.peer.start(self.run), cwd=HERE, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def __enter__(self):
        try:
            self.wait_answer(START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def answer_is_right(self) -> bool:
        answer = self.peer.answer(post(self.run.url + self.peer.path, self.peer.body))
        expected = self.versions[self.serving]
        return len(answer) == len(expected) and all(abs(a - b) < 1e-3 for a, b in zip(answer, expected))

    def wait_answer(self, timeout_s: float) -> None:
        """Waits until the server answers with the version that should serve."""
        deadline, problem = time.monotonic() + timeout_s, "no answer"
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failed(f"it ended with {self.process.returncode}: {last_line(self.log.read_text())}")
            try:
                if self.answer_is_right():
                    return
                problem = "a wrong answer"
            except (OSError, ValueError, KeyError, IndexError) as error:
                problem = str(error)
            time.sleep(0.1)
        raise Failed(f"{problem} after {timeout_s:.0f} s: {last_line(self.log.read_text(errors='replace'))}")

    def processes(self) -> list[int]:
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.token.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def cpu_seconds(self) -> float:
        """Returns user and system time of the server's processes and of their ended children."""
        total = 0
        for process in self.processes():
            try:
                fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += sum(map(int, fields[11:15]))
        return total * TICK_S

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for process in self.processes():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def swap(self) -> None:
        """Starts the swap to the other version. Requests continue."""
        self.serving = 1 - self.serving
        aside = self.run.scratch / "next.onnx"
        shutil.copyfile(self.run.scratch / f"{self.serving}.onnx", aside)
        aside.rename(self.run.model)
        self.peer.swap(self.run, self.process)


# ---- measurements


def wrk(server: Server, clients: int, seconds: float) -> dict:
    """Sends requests from `clients` connections, each of which waits for its answer."""
    body = server.run.scratch / "body.json"
    body.write_text(json.dumps(server.peer.body))
    command = ["wrk", "--threads", "1", "--connections", str(clients), "--duration", f"{max(1, round(seconds))}s",
               "--timeout", "10s", "--script", str(HERE / "load.lua"), server.run.url + server.peer.path]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PEER_BODY": str(body)})
    found = re.search(r"^JSON (.*)$", done.stdout, re.MULTILINE)
    if found is None:
        raise Failed(f"wrk: {last_line(done.stderr or done.stdout)}")
    return json.loads(found[1])


def point(server: Server, clients: int, seconds: float) -> dict:
    wrk(server, clients, min(1, seconds))
    before = server.cpu_seconds()
    found = wrk(server, clients, seconds)
    used = server.cpu_seconds() - before
    answered = found["requests"] - found["failed"]
    return {"clients": clients, "rps": answered / found["seconds"], "cpu_us": 1e6 * used / max(1, answered),
            **{key: found[key] for key in ("p50_ms", "p99_ms", "p999_ms", "failed")}}  # fmt: skip


def open_loop(server: Server, rate: float, seconds: float, during=lambda: None) -> dict:
    """Sends `rate` requests per second regardless of the answers. Latency counts from when a request was due."""
    return bench_load(server, seconds, ["--rate", f"{rate:.0f}", "--connections", str(CLIENTS_MAIN)], during)


def closed_loop(server: Server, seconds: float) -> float:
    """Returns the requests per second of clients that wait for their answers: the client of `open_loop` costs more than
    wrk, and shares the cores with the server."""
    return bench_load(server, seconds, ["--clients", str(CLIENTS_MAIN)])["rps"]


def bench_load(server: Server, seconds: float, pace: list[str], during=lambda: None) -> dict:
    request, report = server.run.scratch / "request.json", server.run.scratch / "load.json"
    request.write_text(json.dumps(OIP_BODY))
    command = [server.run.program, "bench", "load", "--url", server.run.url, "--api", "tfs", "--model", "light",
               "--request", str(request), *pace, "--warm-up",
               "2s", "--duration", f"{seconds}s", "--drain", "10s", "--json", str(report)]  # fmt: skip
    load = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    # The warm-up has ended by then.
    time.sleep(2.3)
    try:
        during()
    except OSError as error:
        load.kill()
        load.communicate()
        raise Failed(f"the swap failed: {error}") from None
    output, _ = load.communicate(timeout=seconds + 60)
    if load.returncode != 0:
        raise Failed(f"bench load: {last_line(output)}")
    return json.loads(report.read_text())


def measure_swaps(server: Server, share: float, swaps: int, seconds: int) -> dict:
    rate = share * closed_loop(server, seconds)
    steady, swapped, failed = [], [], 0
    for _ in range(swaps):
        steady.append(open_loop(server, rate, seconds)["p999_ms"])
        found = open_loop(server, rate, seconds, server.swap)
        swapped.append(found["p999_ms"])
        failed += found["failed"]
        server.wait_answer(START_TIMEOUT_S)
    steady_ms, swap_ms = statistics.median(steady), statistics.median(swapped)
    return {"rps": rate, "steady_p999_ms": steady_ms, "swap_p999_ms": swap_ms, "failed": failed,
            "ratio": swap_ms / steady_ms, "each_steady_ms": steady, "each_swap_ms": swapped}  # fmt: skip


def median_of(points: list[dict]) -> dict:
    medians = {key: statistics.median(each[key] for each in points) for key in points[0]}
    # A name of a figure has this number, and a median of two whole numbers is none.
    return medians | {"clients": points[0]["clients"]}


def summary(rounds: list[list[dict]], swap: dict | None, name: str) -> dict:
    points = [median_of(list(same)) for same in zip(*rounds)]
    allowed = [each["rps"] for each in points if each["p99_ms"] <= P99_MAX_MS and not each["failed"]]
    main = next((each for each in points if each["clients"] == CLIENTS_MAIN), points[-1])
    peer = PEERS[name]
    return {"cpu_us": main["cpu_us"], "rps_at_p99_10ms": max(allowed, default=None),
            "swap_p999_ratio": swap["ratio"] if swap and not swap["failed"] else None, "version": version(name),
            **{f"clients_{each['clients']}": each for each in points},
            "swap": swap or ({"none": peer.no_swap} if peer.no_swap else None)}  # fmt: skip


def version(name: str) -> str:
    if name == "millpond":
        return "this tree"
    pinned = (HERE / f"{name}.txt").read_text()
    return re.search(rf"^{re.escape(PEERS[name].package)}==(.*)$", pinned, re.MULTILINE)[1]


def with_server(name: str, program: str, measure):
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as scratch:
        with Server(name, pathlib.Path(scratch), program) as server:
            return measure(server)


def measure_all(names: list[str], arguments) -> tuple[dict, dict]:
    """Returns the figures of each peer, and why others have none."""
    points, swaps, failed = {name: [] for name in names}, {}, {}
    clients = CLIENTS if not arguments.smoke else (1, CLIENTS_MAIN)

    def attempt(name, action):
        if name in failed:
            return
        try:
            action()
        except (Failed, subprocess.SubprocessError) as error:
            failed[name] = str(error)
            print(f"{name}: {error}", flush=True)

    for name in names:
        if name != "millpond":
            attempt(name, lambda: install(name))
    for number in range(arguments.rounds):
        for name in names:
            def sweep(server):
                points[name].append([point(server, count, arguments.seconds) for count in clients])
                print(f"round {number + 1}, {name}: " + ", ".join(
                    f"{each['clients']} clients {each['rps']:.0f}/s" for each in points[name][-1]), flush=True)

            attempt(name, lambda: with_server(name, arguments.program, sweep))
    for name in names:
        if PEERS[name].swap and name not in failed and not arguments.no_swaps:

            def swap(server):
                # A debug build on a busy machine needs a lower rate to be served at all.
                how = (0.1, 1, 1) if arguments.smoke else (SWAP_LOAD, SWAPS, SWAP_SECONDS)
                swaps[name] = measure_swaps(server, *how)
                print(f"swaps, {name}: p999 {swaps[name]['swap_p999_ms']:.1f} ms", flush=True)

            try:
                with_server(name, arguments.program, swap)
            except (Failed, subprocess.SubprocessError) as error:
                print(f"{name}: no figures of swaps: {error}", flush=True)
    measured = {name: summary(points[name], swaps.get(name), name) for name in names if points[name]}
    return measured, failed


# ---- output


def number(value, form: str) -> str:
    return "-" if value is None else format(value, form)


def table(peers: dict, failed: dict) -> str:
    columns = ("server", "version", "1 client /s", "us", "64 clients /s", "us", "p99 ms", "/s, p99<=10", "swap p999 x")
    rows = [columns]
    for name, found in peers.items():
        one, many = found["clients_1"], found[f"clients_{CLIENTS_MAIN}"]
        rows.append((name, found["version"], f"{one['rps']:.0f}", f"{one['cpu_us']:.0f}", f"{many['rps']:.0f}",
                     f"{many['cpu_us']:.0f}", f"{many['p99_ms']:.1f}", number(found["rps_at_p99_10ms"], ".0f"),
                     number(found["swap_p999_ratio"], ".2f")))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows]
    lost = {name: (found["swap"] or {}).get("failed") for name, found in peers.items()}
    lines += [f"{name}: {count} requests failed while it swapped" for name, count in lost.items() if count]
    return "\n".join(lines + [f"{name}: not measured: {reason}" for name, reason in failed.items()])


def chart(peers: dict, file: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(peers)
    panels = [
        (f"server CPU per request, {CLIENTS_MAIN} clients (us)", [peers[name]["cpu_us"] for name in names]),
        ("requests/s with p99 of at most 10 ms", [peers[name]["rps_at_p99_10ms"] or 0 for name in names]),
        ("p999 after a swap / without (0: none)", [peers[name]["swap_p999_ratio"] or 0 for name in names]),
    ]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(13, 3.4), layout="constrained")
    for axis, (title, values) in zip(axes, panels):
        bars = axis.barh(names, values, color=["#2a6f97" if name == "millpond" else "#b8c4cc" for name in names])
        axis.bar_label(bars, fmt="%.4g", padding=2)
        axis.set_title(title, fontsize=10)
        axis.invert_yaxis()
        axis.margins(x=0.2)
    figure.savefig(file)


def arguments_given():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.environ.get("MILLPOND", str(ROOT / "target/release/millpond")),
                        help="millpond [default: the variable MILLPOND, else target/release/millpond]")  # fmt: skip
    parser.add_argument("--peers", default=",".join(PEERS), help="servers to measure [default: all]")
    parser.add_argument("--seconds", type=float, default=4, help="for each number of clients [default: 4]")
    parser.add_argument("--rounds", type=int, default=2, help="starts of each server, interleaved [default: 2]")
    parser.add_argument("--no-swaps", action="store_true", help="measure no swaps")
    parser.add_argument("--smoke", action="store_true", help="Millpond only, some seconds; the figures mean nothing")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
    parser.add_argument("--chart", type=pathlib.Path, help="file for the chart (.svg or .png)")
    arguments = parser.parse_args()
    unknown = set(arguments.peers.split(",")) - set(PEERS)
    if unknown:
        parser.error(f"no peer is named {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if shutil.which("wrk") is None:
        parser.error("wrk is missing: apt-get install wrk")
    if arguments.smoke:
        arguments.peers, arguments.seconds, arguments.rounds = "millpond", 1, 2
    arguments.program = str(pathlib.Path(arguments.program).absolute())
    return arguments


def main():
    arguments = arguments_given()
    peers, failed = measure_all(arguments.peers.split(","), arguments)
    report = {"model": "light", "peers": peers, "not_measured": failed, "seconds": arguments.seconds,
              "rounds": arguments.rounds, "cores": os.cpu_count()}  # fmt: skip
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=1))
    if peers:
        print("\n" + table(peers, failed))
        if arguments.chart:
            chart(peers, arguments.chart)
    # Without Millpond there is no comparison.
    sys.exit(0 if "millpond" in peers or "millpond" not in arguments.peers else 1)


if __name__ == "__main__":
    main()
