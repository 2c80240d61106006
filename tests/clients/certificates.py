"""An authority and certificates for tests, made with openssl."""

import pathlib
import subprocess

# Hosts of each certificate.
NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1\n"


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_authority(place: pathlib.Path) -> None:
    """Makes a directory with the authority ca.pem, and the extensions of its certificates."""
    place.mkdir()
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority",
            "-keyout", str(place / "ca-key.pem"), "-out", str(place / "ca.pem"))  # fmt: skip
    (place / "names").write_text(NAMES)


def issue(place: pathlib.Path, name: str, subject: str | None = None) -> None:
    """Makes the certificate NAME.pem of this machine and its key NAME-key.pem, by the authority in the same directory.

    The subject has the form of openssl. Without it, NAME is the common name.
    """
    file = lambda name: str(place / name)  # noqa: E731
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", subject or f"/CN={name}",
            "-keyout", file(f"{name}-key.pem"), "-out", file(f"{name}.csr"))  # fmt: skip
    openssl("x509", "-req", "-days", "2", "-in", file(f"{name}.csr"), "-CA", file("ca.pem"),
            "-CAkey", file("ca-key.pem"), "-CAcreateserial", "-extfile", file("names"),
            "-out", file(f"{name}.pem"))  # fmt: skip
