"""Proxies with faults, each a process of its own.

    python tests/cluster/proxies.py delay PORT HOST:PORT    delays what clients send, for any protocol over TCP
    python tests/cluster/proxies.py faults PORT HOST:PORT   delays HTTP requests and fails a share of them with 503

Settings come as JSON lines on standard input, each answered by a line `{}`: `{"delay_ms": 200, "error_share": 0.1}`. A
proxy starts without faults. It ends when its standard input does.
"""

import asyncio
import contextlib
import dataclasses
import json
import random
import sys

CHUNK_BYTES = 64 << 10
HEAD_BYTES_MAX = 64 << 10
SEED = 35
UNAVAILABLE = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code>"
    b"<Message>a planned fault of the test</Message></Error>"
)


@dataclasses.dataclass
class Faults:
    """Faults that apply to requests from now on."""

    delay_ms: float = 0
    # Share of requests that fail. Half of these are carried out all the same.
    error_share: float = 0


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, faults: Faults | None) -> None:
    """Copies bytes to the end. With faults, each chunk waits for the delay, and later chunks do not wait for earlier ones."""
    loop, chunks = asyncio.get_running_loop(), asyncio.Queue(maxsize=256)

    async def send() -> None:
        while (entry := await chunks.get()) is not None:
            due, chunk = entry
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            writer.write(chunk)
            await writer.drain()

    sender = asyncio.create_task(send())
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            delay_s = faults.delay_ms / 1000 if faults else 0
            await chunks.put((loop.time() + delay_s, chunk))
            if sender.done():
                break
    if not sender.done():
        await chunks.put(None)
    with contextlib.suppress(OSError):
        await sender
        writer.write_eof()


def delay_handler(target: tuple[str, int], faults: Faults):
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*target)
        except OSError:
            # A closed connection at once, as from a server that has just ended.
            writer.transport.abort()
            return
        to_server = asyncio.create_task(copied(reader, upstream_writer, faults))
        to_client = asyncio.create_task(copied(upstream_reader, writer, None))
        # A server that ends closes both directions. A client that ends its direction still gets its answer.
        await to_client
        to_server.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await to_server
        upstream_writer.close()
        writer.close()

    return handle


async def body_of(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Reads the body that follows a head: of a known length, or in chunks."""
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        body = b""
        while True:
            line = await reader.readline()
            size = int(line.split(b";")[0], 16)
            body += line + await reader.readexactly(size + 2)
            if size == 0:
                return body
    return await reader.readexactly(int(fields.get(b"content-length", b"0")))


async def forwarded(target: tuple[str, int], request: bytes) -> bytes:
    """Sends one request on a connection of its own. Returns the whole answer."""
    reader, writer = await asyncio.open_connection(*target)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read(-1)
    finally:
        writer.close()


def closing(head: bytes) -> bytes:
    """Returns the head with `connection: close`. The signature of a request does not cover these fields."""
    own = (b"connection:", b"expect:")
    lines = [line for line in head.rstrip(b"\r\n").split(b"\r\n") if not line.lower().startswith(own)]
    return b"\r\n".join([*lines, b"connection: close"]) + b"\r\n\r\n"


def fault_handler(target: tuple[str, int], faults: Faults, rng: random.Random):
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"100-continue" in head.lower():
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await body_of(reader, head)
            await asyncio.sleep(faults.delay_ms / 1000)
            failed, carried_out = rng.random() < faults.error_share, rng.random() < 0.5
            answer = b""
            if not failed or carried_out:
                answer = await forwarded(target, closing(head) + body)
            if failed:
                fields = b"content-type: application/xml\r\ncontent-length: %d\r\nconnection: close" % len(UNAVAILABLE)
                answer = b"HTTP/1.1 503 Service Unavailable\r\n" + fields + b"\r\n\r\n" + UNAVAILABLE
            writer.write(answer)
            await writer.drain()
        writer.close()

    return handle


async def controlled(faults: Faults) -> None:
    """Applies settings from standard input until its end."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        for name, value in json.loads(line).items():
            setattr(faults, name, value)
        print("{}", flush=True)


async def main(kind: str, port: int, target: tuple[str, int]) -> None:
    faults = Faults()
    handler = delay_handler(target, faults) if kind == "delay" else fault_handler(target, faults, random.Random(SEED))
    server = await asyncio.start_server(handler, "127.0.0.1", port, limit=HEAD_BYTES_MAX)
    print("{}", flush=True)
    await controlled(faults)
    server.close()


if __name__ == "__main__":
    host, target_port = sys.argv[3].rsplit(":", 1)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), (host, int(target_port))))
