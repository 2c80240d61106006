"""An S3 server in this process: moto, which checks signatures, behind a layer that counts requests and bytes."""

import dataclasses
import json
import os
import threading
import urllib.parse

os.environ.setdefault("MOTO_CALL_RESET_API", "false")

import boto3  # noqa: E402
import moto.settings  # noqa: E402
from moto.moto_server.werkzeug_app import (  # noqa: E402
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server  # noqa: E402

BUCKET = "bucket"
REGION = "us-east-1"
CHUNK_BYTES = 64 << 10
POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


class QuietHandler(MotoRequestHandler):
    def log(self, *_arguments) -> None:
        """Requests are counted and not logged."""


@dataclasses.dataclass
class Counts:
    """Requests since the last reset."""

    lists: int = 0
    gets: int = 0
    puts: int = 0
    # Bytes of objects that clients received.
    bytes_read: int = 0
    # Keys in the order of their upload.
    keys: list[str] = dataclasses.field(default_factory=list)


class S3Store:
    """A bucket on a port of the loopback, with one user who may do anything in it."""

    def __init__(self):
        self.counts = Counts()
        # Bytes after which the bodies of objects are held back; `None` holds back none.
        self.bytes_max: int | None = None
        self.released = threading.Event()
        # Bodies of objects that are being sent, without those that are held back.
        self.sending = 0
        self.lock = threading.Lock()
        self.app = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self.count, threaded=True, request_handler=QuietHandler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.key, self.secret = self.make_user()
        self.client = self.boto("s3", self.key, self.secret)
        self.client.create_bucket(Bucket=BUCKET)

    def boto(self, service: str, key: str = "root", secret: str = "root"):
        return boto3.client(
            service, endpoint_url=self.endpoint, region_name=REGION, aws_access_key_id=key, aws_secret_access_key=secret
        )

    def make_user(self) -> tuple[str, str]:
        """Makes a user, and lets the server check signatures from now on."""
        iam = self.boto("iam")
        iam.create_user(UserName="millpond")
        iam.put_user_policy(UserName="millpond", PolicyName="all", PolicyDocument=json.dumps(POLICY))
        made = iam.create_access_key(UserName="millpond")["AccessKey"]
        moto.settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        return made["AccessKeyId"], made["SecretAccessKey"]

    def count(self, environ, start_response):
        """The WSGI application: moto, counted."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        query = urllib.parse.parse_qs(environ.get("QUERY_STRING", ""))
        is_list = method == "GET" and "list-type" in query
        is_get = method == "GET" and not is_list
        body = b"".join(self.app(environ, start_response))
        with self.lock:
            self.counts.lists += is_list
            self.counts.gets += is_get
            if method == "PUT":
                self.counts.puts += 1
            if method in ("PUT", "POST"):
                self.counts.keys.append(path.removeprefix(f"/{BUCKET}/"))
        return self.sent(body) if is_get else [body]

    def sent(self, body: bytes):
        """Sends a body, and counts the bytes that the client receives."""
        if self.bytes_max is not None and self.counts.bytes_read >= self.bytes_max:
            self.released.wait()
            return
        with self.lock:
            self.sending += 1
        try:
            for start in range(0, len(body), CHUNK_BYTES):
                chunk = body[start : start + CHUNK_BYTES]
                yield chunk
                with self.lock:
                    self.counts.bytes_read += len(chunk)
        finally:
            with self.lock:
                self.sending -= 1

    def reset(self) -> None:
        with self.lock:
            self.counts = Counts()

    def hold_after(self, bytes_max: int) -> None:
        """Holds back the bodies of objects once clients have received so many bytes."""
        self.released.clear()
        self.bytes_max = bytes_max

    def release(self) -> None:
        """Ends the held back answers without a body, and sends the following ones."""
        self.bytes_max = None
        self.released.set()

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def objects(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=key)

    def clear(self) -> None:
        self.release()
        for key in self.objects():
            self.delete(key)
        self.reset()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
