"""Files of keys, and tokens that are signed with a key."""

import base64
import hashlib
import hmac
import json
import pathlib
import subprocess

from millpond import BINARY


def new_key(file: pathlib.Path, *arguments: str) -> str:
    """Adds a key to a file, as an operator does. Returns the key."""
    made = subprocess.run([BINARY, "keys", "new", *arguments], check=True, capture_output=True, text=True)
    with file.open("a") as lines:
        lines.write(made.stdout)
    return made.stderr.split()[-1]


def token(secret: str, claims: dict, algorithm: str = "HS256") -> str:
    """Returns a JSON Web Token, signed by HMAC-SHA256."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    header = part(json.dumps({"alg": algorithm, "typ": "JWT"}).encode())
    signed = f"{header}.{part(json.dumps(claims).encode())}"
    return f"{signed}.{part(hmac.new(secret.encode(), signed.encode(), hashlib.sha256).digest())}"
