"""Requests a server's health and one inference repeatedly, and prints the time of each answer.

It is a process of its own, so that the attackers' load on Python is not measured. Each health check opens a connection,
as an orchestrator's probe does. Inference keeps one. Lines on standard output: KIND TIME MILLISECONDS OK.

    python probe.py PORT MODEL
"""

import socket
import sys
import threading
import time

PAUSE_S = 0.05
TIMEOUT_S = 30
BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.0]}]}'
WANTED = b"2.5"
LOCK = threading.Lock()


def tell(kind: str, begun: float, good: bool) -> None:
    took = (time.monotonic() - begun) * 1000
    with LOCK:
        print(f"{kind} {begun:.4f} {took:.2f} {int(good)}", flush=True)


def answer(connection: socket.socket) -> bytes:
    """Reads one complete response with a content length."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError("closed")
        got += piece
    head, body = got.split(b"\r\n\r\n", 1)
    length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
    while len(body) < length:
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError("closed")
        body += piece
    return head + b"\r\n\r\n" + body


def health(port: int) -> None:
    request = f"GET /v2/health/live HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n".encode()
    while True:
        begun = time.monotonic()
        try:
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
                connection.sendall(request)
                good = answer(connection).startswith(b"HTTP/1.1 200")
        except OSError:
            good = False
        tell("health", begun, good)
        time.sleep(PAUSE_S)


def inference(port: int, model: str) -> None:
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: {len(BODY)}\r\n\r\n"
    request = head.encode() + BODY
    connection = None
    while True:
        begun = time.monotonic()
        try:
            connection = connection or socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
            connection.sendall(request)
            got = answer(connection)
            good = got.startswith(b"HTTP/1.1 200") and WANTED in got
        except OSError:
            connection, good = None, False
        tell("infer", begun, good)
        time.sleep(PAUSE_S)


def main() -> None:
    port, model = int(sys.argv[1]), sys.argv[2]
    threading.Thread(target=health, args=(port,), daemon=True).start()
    inference(port, model)


if __name__ == "__main__":
    main()
