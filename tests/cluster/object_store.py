"""The S3 server of tests/stores (moto) as a process of its own.

Prints its environment variables as one JSON object, then runs until its standard input ends. moto and the threads of
the load would otherwise wait for each other's interpreter lock.
"""

import json
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stores"))

from store import BUCKET, S3Store  # noqa: E402


class AtomicStore(S3Store):
    """The server with one write at a time: moto's check of `If-None-Match: *` and its write are two steps."""

    def __init__(self):
        self.write_lock = threading.Lock()
        super().__init__()

    def count(self, environ, start_response):
        if environ["REQUEST_METHOD"] == "GET":
            return super().count(environ, start_response)
        with self.write_lock:
            return super().count(environ, start_response)


store = AtomicStore()
print(json.dumps(store.environment() | {"BUCKET": BUCKET}), flush=True)
sys.stdin.read()
