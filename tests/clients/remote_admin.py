"""Run by test_server.py inside its own network namespace: calls a server from an address other than the loopback's.
Prints the answer of each call as JSON.

usage: unshare --map-root-user --net python remote_admin.py ROOT LOG [FLAGS...]
"""

import fcntl
import json
import pathlib
import socket
import struct
import sys

import requests
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from millpond import Server

# Key of all calls. A server without an admin key ignores it.
KEY = "adm1n"
# An address of the block for documentation. In this namespace it belongs to the loopback device.
ADDRESS = "192.0.2.1"
SIOCSIFADDR, SIOCSIFFLAGS = 0x8916, 0x8914
IFF_UP_RUNNING = 0x1 | 0x40


def bring_up(device: bytes, address: str) -> None:
    """Gives a network device an address and starts it: `ip address add` and `ip link set up`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        sockaddr = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
        fcntl.ioctl(control, SIOCSIFADDR, struct.pack("16s16s", device, sockaddr))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", device, IFF_UP_RUNNING))


def load_by_grpc(address: str) -> str:
    with tritonclient.grpc.InferenceServerClient(address) as client:
        try:
            client.load_model("half_plus_two", headers={"authorization": f"Bearer {KEY}"})
        except InferenceServerException as error:
            return error.status()
    return "OK"


def main() -> None:
    root, log, *flags = sys.argv[1:]
    bring_up(b"lo", "127.0.0.1")
    bring_up(b"lo:1", ADDRESS)
    server = Server(pathlib.Path(root), *flags, log=pathlib.Path(log), host="0.0.0.0").wait_ready()
    url = f"http://{ADDRESS}:{server.http_port}"
    admin = f"{url}/v2/repository/models/half_plus_two"
    headers = {"Authorization": f"Bearer {KEY}"}
    found = {
        "ready": requests.get(f"{url}/v2/health/ready", timeout=60).status_code,
        "load without the key": requests.post(f"{admin}/load", json={}, timeout=30).status_code,
        "load": requests.post(f"{admin}/load", json={}, headers=headers, timeout=30).status_code,
        "unload": requests.post(f"{admin}/unload", json={}, headers=headers, timeout=30).status_code,
        "load by gRPC": load_by_grpc(f"{ADDRESS}:{server.grpc_port}"),
        "load from the loopback": load_by_grpc(server.grpc),
        "exit": server.stop(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
