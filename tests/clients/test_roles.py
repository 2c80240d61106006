"""Every operation of both ports with each role and without a key, as roles.py says."""

import json

import grpc
import pytest
import requests
from keys import new_key
from millpond import Server, drop_in
from models import half_plus_two
from roles import METHODS, OPEN, OPERATIONS, PAGES, ROLES, by_name, grpc_methods, permits

VERBS = ("get", "post", "put", "patch", "delete")
TIMEOUT_S = 60
# Suffixes of the operations of a path for versions and labels.
TARGETS = ("OfVersion", "OfLabel")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("roles")
    drop_in(half_plus_two(scratch / "half_plus_two.onnx"), scratch / "models/half_plus_two", 1)
    keys = scratch / "keys.toml"
    made = {role: new_key(keys, "--role", role) for role in ROLES}
    server = Server(
        scratch / "models", "--keys", str(keys), "--collections-dir", str(scratch / "collections"),
        log=scratch / "server.log",
    ).wait_ready()  # fmt: skip
    server.keys = made
    yield server
    assert server.stop() == 0, server.log_text()


def headers(served: Server, role: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {served.keys[role]}"} if role else {}


def operations(served: Server) -> list[tuple[str, str, str]]:
    """Returns method, path and id of every operation of the document."""
    document = requests.get(f"{served.url}/openapi.json", headers=headers(served, "read"), timeout=TIMEOUT_S).json()
    return [
        (verb, path, item[verb]["operationId"])
        for path, item in document["paths"].items() for verb in VERBS if verb in item
    ]  # fmt: skip


def base(name: str) -> str:
    for target in TARGETS:
        name = name.removesuffix(target)
    return name


def answered(served: Server, verb: str, path: str, role: str | None) -> str:
    """Sends an empty request for names that do not exist. Returns "no key", "denied" or "permitted"."""
    path = "/".join("x" if part.startswith("{") and part.endswith("}") else part for part in path.split("/"))
    for name in ("model", "label", "version"):
        path = path.replace(f"{{{name}}}", "9")
    # A stream has no end, so its answer is not read.
    with requests.request(
        verb, served.url + path, headers=headers(served, role), timeout=TIMEOUT_S, stream=True, allow_redirects=False
    ) as answer:
        return {401: "no key", 403: "denied"}.get(answer.status_code, "permitted")


def expected(role: str | None, needed: str) -> str:
    if permits(role, needed):
        return "permitted"
    return "no key" if role is None else "denied"


def test_every_operation_has_a_role(served):
    found = {base(name) for _, _, name in operations(served)}
    table = by_name(OPERATIONS)
    assert found == set(table), f"without a row: {found - set(table)}; unknown: {set(table) - found}"
    methods, table = set(grpc_methods()), by_name(METHODS)
    assert methods == set(table), f"without a row: {methods - set(table)}; unknown: {set(table) - methods}"


@pytest.mark.parametrize("role", [None, *ROLES])
def test_http_operations(served, role):
    table = by_name(OPERATIONS)
    rows = [(verb, path, table[base(name)]) for verb, path, name in operations(served)]
    rows += [("get", path, needed) for path, needed in PAGES.items()]
    wrong = {}
    for verb, path, needed in rows:
        found, wanted = answered(served, verb, path, role), expected(role, needed)
        if found != wanted:
            wrong[f"{verb} {path}"] = f"{found}, not {wanted}"
    assert not wrong, json.dumps(wrong, indent=1)
    assert len(rows) > 100


def message_of(method: str) -> bytes:
    """Returns an empty message, or one for a collection and an item in it."""
    service, name = method.split("/")
    if not service.startswith("qdrant.") or name in ("UpdateAliases", "CreateFull", "HealthCheck"):
        return b""
    fields = {"DeleteFieldIndex": (1, 3), "DeleteFull": (1,)}.get(name, (1, 2) if method == "qdrant.Snapshots/Delete" else (1,))
    return b"".join(bytes([field << 3 | 2, 1]) + b"x" for field in fields)


def call(served: Server, method: str, role: str | None) -> str:
    """Calls a method with a small message. Returns "no key", "denied" or "permitted"."""
    same = lambda message: message  # noqa: E731
    with grpc.insecure_channel(served.grpc) as channel:
        stream = channel.stream_stream(f"/{method}", request_serializer=same, response_deserializer=same)
        metadata = list(headers(served, role).items())
        # The first answer is enough: Watch has no end.
        calls = stream(iter([message_of(method)]), metadata=metadata, timeout=TIMEOUT_S)
        try:
            next(calls)
        except StopIteration:
            return "permitted"
        except grpc.RpcError as error:
            codes = {grpc.StatusCode.UNAUTHENTICATED: "no key", grpc.StatusCode.PERMISSION_DENIED: "denied"}
            return codes.get(error.code(), "permitted")
        finally:
            calls.cancel()
        return "permitted"


@pytest.mark.parametrize("role", [None, *ROLES])
def test_grpc_methods(served, role):
    wrong = {}
    for method, needed in by_name(METHODS).items():
        found, wanted = call(served, method, role), expected(role, needed)
        if found != wanted:
            wrong[method] = f"{found}, not {wanted}"
    assert not wrong, json.dumps(wrong, indent=1)


def test_an_unknown_key_is_no_key(served):
    for path, needed in PAGES.items():
        answer = requests.get(served.url + path, headers={"api-key": "mp_other"}, timeout=TIMEOUT_S, stream=True)
        assert (answer.status_code == 401) == (needed != OPEN), path
        answer.close()
