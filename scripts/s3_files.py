#!/usr/bin/env python3
"""s3_files.py DIRECTORY: serves the subdirectories of DIRECTORY as buckets of S3, for reading, on a free port of the loopback.

The first line of its output is the address. It ends when its standard input is closed. For `millpond bench swap --store
s3`: bytes go from the file to the socket in the kernel, so that the measured machine spends little on this process.
Signatures are not checked.
"""

import http.server
import os
import pathlib
import re
import sys
import threading
import urllib.parse
from xml.sax.saxutils import escape

KEYS_MAX = 1000


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are written apart, so the kernel must not wait for more.
    disable_nagle_algorithm = True
    root: pathlib.Path

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        if "list-type" in query:
            self.list(url.path, query)
        else:
            self.object(url.path)

    def do_HEAD(self) -> None:
        self.object(urllib.parse.urlsplit(self.path).path)

    def list(self, path: str, query: dict[str, list[str]]) -> None:
        """Answers ListObjectsV2. A continuation token is the last key of the page before."""
        bucket = self.root / path.strip("/")
        prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]
        keys = sorted(
            str((pathlib.Path(folder) / name).relative_to(bucket))
            for folder, _, names in os.walk(bucket)
            for name in names
        )
        keys = [key for key in keys if key.startswith(prefix) and key > after]
        page, rest = keys[:KEYS_MAX], keys[KEYS_MAX:]
        entries = []
        for key in page:
            # A version that is removed meanwhile is left out.
            try:
                meta = (bucket / key).stat()
            except FileNotFoundError:
                continue
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{escape(tag(meta))}</ETag><Size>{meta.st_size}</Size></Contents>"
            )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest else ""
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
            f"<IsTruncated>{'true' if rest else 'false'}</IsTruncated><KeyCount>{len(entries)}</KeyCount>"
            f"{''.join(entries)}{token}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def object(self, path: str) -> None:
        """Answers GetObject and HeadObject, with one range and If-Match."""
        place = (self.root / urllib.parse.unquote(path).lstrip("/")).resolve()
        try:
            if not place.is_relative_to(self.root):
                raise FileNotFoundError
            file = place.open("rb")
        except (FileNotFoundError, IsADirectoryError):
            self.refuse(404)
            return
        with file:
            meta = os.fstat(file.fileno())
            if self.headers.get("If-Match", tag(meta)) != tag(meta):
                self.refuse(412)
                return
            start, end = 0, meta.st_size
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if wanted:
                start, end = int(wanted[1]), min(int(wanted[2]) + 1, meta.st_size)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{meta.st_size}")
            self.send_header("ETag", tag(meta))
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            if self.command == "GET":
                self.wfile.flush()
                self.connection.sendfile(file, start, end - start)

    def refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments) -> None:
        """Requests are not logged."""


def tag(meta: os.stat_result) -> str:
    return f'"{meta.st_ino:x}-{meta.st_mtime_ns:x}-{meta.st_size:x}"'


def main() -> None:
    Handler.root = pathlib.Path(sys.argv[1]).resolve()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
