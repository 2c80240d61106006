"""`millpond audio` and the audio endpoint, as a user calls them."""

import dataclasses
import json
import pathlib
import select
import socket
import subprocess
import sys

import requests

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))

from millpond import BINARY  # noqa: E402

from recordings import REPOSITORY  # noqa: E402

RECOGNISERS = REPOSITORY / ".cache/recognisers"
COMMAND_TIMEOUT_S = 400
READ_BYTES = 1 << 16


@dataclasses.dataclass
class Heard:
    """The labels of one recording."""

    labels: list[dict]
    faults: list[dict]
    code: int
    errors: str
    summary: dict

    def spans(self) -> list[tuple[float, float]]:
        return [(label["start"], label["end"]) for label in self.labels]

    def texts(self) -> list[str]:
        return [label["text"] for label in self.labels]


def command(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(BINARY), *map(str, arguments)],
        cwd=REPOSITORY, text=True, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip


def listen(recogniser: str, path: pathlib.Path, *flags) -> Heard:
    """Runs `millpond audio` on one recording. The answer includes its faults."""
    done = command("audio", path, "--recogniser", recogniser, "--format", "json", *flags)
    if not done.stdout.strip():
        return Heard([], [], done.returncode, done.stderr, {})
    document = json.loads(done.stdout)
    return Heard(document["labels"], document["faults"], done.returncode, done.stderr, document)


def lines(answer: requests.Response) -> Heard:
    """Parses the endpoint's lines of JSON."""
    events = [json.loads(line) for line in answer.text.splitlines()]
    kinds = {"label": [], "fault": [], "error": [], "summary": []}
    for event in events:
        kinds.setdefault(event["type"], []).append(event)
    errors = "; ".join(event["error"] for event in kinds["error"])
    summary = kinds["summary"][0] if kinds["summary"] else {}
    return Heard(kinds["label"], kinds["fault"], answer.status_code, errors, summary)


def post(url: str, recogniser: str, body, **headers) -> requests.Response:
    return requests.post(f"{url}/v1/audio/{recogniser}", data=body, headers=headers, timeout=COMMAND_TIMEOUT_S)


class Upload:
    """A chunked upload by hand, whose answer can be read while it still runs."""

    def __init__(self, address: str, path: str, content_type: str = "audio/wav"):
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        head = [
            f"POST {path} HTTP/1.1",
            f"Host: {address}",
            f"Content-Type: {content_type}",
            "Transfer-Encoding: chunked",
        ]
        self.socket.sendall("".join(f"{line}\r\n" for line in [*head, ""]).encode())
        self.received = b""

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), READ_BYTES):
            piece = data[start : start + READ_BYTES]
            self.socket.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")

    def end(self) -> None:
        self.socket.sendall(b"0\r\n\r\n")

    def read_now(self, wait_s: float = 0.02) -> bytes:
        """Returns the bytes received so far, after a short wait for more."""
        if select.select([self.socket], [], [], wait_s)[0]:
            self.received += self.socket.recv(READ_BYTES)
        return self.received

    def read_until(self, wanted: bytes) -> bytes:
        """Waits for `wanted`. Returns the bytes received so far."""
        while wanted not in self.received:
            more = self.socket.recv(READ_BYTES)
            assert more, self.received[-2000:]
            self.received += more
        return self.received

    def close(self) -> None:
        self.socket.close()
