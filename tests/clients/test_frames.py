"""HTTP/2 frames that gRPC clients send and that no client library lets a test choose."""

import contextlib
import socket
import struct

from tritonclient.grpc.service_pb2 import ModelInferRequest

SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 4, 6, 7, 8
ACK, END_HEADERS = 1, 4
BACKLOG = 60_000


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def received_until(file, ends) -> list[tuple[int, int, bytes]]:
    """Reads frames until `ends` is true of the last one. Returns type, flags and payload of each."""
    frames = []
    while not frames or not ends(*frames[-1]):
        head = file.read(9)
        assert len(head) == 9, f"the connection was closed after {frames}"
        frames.append((head[3], head[4], file.read(int.from_bytes(head[:3]))))
    return frames


def one_request() -> bytes:
    request = ModelInferRequest(model_name="half_plus_two")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1])
    tensor.contents.fp32_contents.append(1)
    message = request.SerializeToString()
    return b"\0" + struct.pack(">I", len(message)) + message


def test_a_backlog_of_small_requests_keeps_its_connection(server):
    """A client sends requests faster than their model runs, each in a frame of its own."""
    path = literal(b":path", b"/inference.GRPCInferenceService/ModelStreamInfer")
    headers = b"\x83\x86" + path + literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers")
    # Without a window for answers, the server reads the first requests of the stream only.
    no_answers = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=60) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + no_answers)
        file = connection.makefile("rb")
        received_until(file, lambda kind, *_: kind == WINDOW_UPDATE)
        connection.sendall(frame(SETTINGS, ACK, 0, b"") + frame(1, END_HEADERS, 1, headers))
        # If the server ends the connection, its last frame says why.
        with contextlib.suppress(ConnectionError):
            connection.sendall(frame(0, 0, 1, one_request()) * BACKLOG + frame(PING, 0, 0, b"backlog!"))
        frames = received_until(file, lambda kind, flags, _: kind == GOAWAY or (kind, flags) == (PING, ACK))
        assert frames[-1] == (PING, ACK, b"backlog!")
    server.assert_serving()
