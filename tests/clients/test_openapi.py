"""`/openapi.json`: the document is valid, and every example is answered as it says."""

import io
import json
import urllib.parse

import pytest
import requests
from jsonschema import Draft202012Validator
from millpond import Server, drop_in
from models import half_plus_two
from openapi_spec_validator import OpenAPIV31SpecValidator
from PIL import Image
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from test_images import patches

METHODS = ("get", "post", "put", "patch", "delete")
TIMEOUT_S = 60

# Calls in an order in which each finds the objects that it needs; all others follow in the order of the document.
FIRST = (
    "createCollection", "upsertPoints", "createIndex", "changeAliases", "setPayload", "fetchPoints", "fetchPoint",
    "scrollPoints", "countPoints", "facet", "queryPoints", "queryPointsBatch", "queryPointGroups", "addImages",
    "findDuplicates",
)  # fmt: skip
LAST = (
    "clearPayload", "deletePoints", "deleteIndex", "cancelDuplicates", "removeImage", "removeImages", "backupJob",
    "deleteCollection", "unload",
)  # fmt: skip

# Status of a call whose example names something that this server lacks; 200 for all others.
STATUSES = {
    "findDuplicates": 202,
    "recognise": 404, "listSpeakers": 404, "enrolSpeaker": 404, "forgetSpeaker": 404, "identifySpeaker": 404,
    "verifySpeaker": 404, "createBackup": 202, "verifyBackups": 202, "pruneBackups": 202, "deleteBackup": 202,
    "restoreBackup": 202, "cloneCollection": 202, "downloadSnapshot": 404, "deleteSnapshot": 404,
    "recoverSnapshot": 404, "uploadSnapshot": 400,
    "dropSegment": 404, "rebuildImages": 409, "changeRollout": 404, "rebuildProgress": 404,
    "identifyPerson": 409, "verifyPrints": 409, "printTemplate": 409, "putFeatures": 400,
}  # fmt: skip

MODEL_SETTINGS = 'labels = { stable = 1 }\n[classify]\nscores = "y"\n[regress]\noutput = "y"\n'


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((96, 96), 64).convert("RGB").save(file, "jpeg")
    return file.getvalue()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("openapi")
    models = scratch / "models"
    drop_in(half_plus_two(scratch / "half_plus_two.onnx"), models / "half_plus_two", 1)
    (models / "half_plus_two/millpond.toml").write_text(MODEL_SETTINGS)
    drop_in(patches(scratch / "patches.onnx"), models / "patches", 1)
    collections = str(scratch / "collections")
    # No collector listens there: the calls that change tracing work without one.
    tracing = ("--otlp", "http://127.0.0.1:9")
    server = Server(models, "--collections-dir", collections, *tracing, log=scratch / "server.log").wait_ready()
    yield server
    assert server.stop() == 0, server.log_text()


@pytest.fixture(scope="module")
def document(served) -> dict:
    return requests.get(f"{served.url}/openapi.json", timeout=TIMEOUT_S).json()


class Call:
    """An operation of the document with the values of its examples."""

    def __init__(self, document: dict, path: str, method: str):
        self.document = document
        self.path, self.method = path, method
        item = document["paths"][path]
        self.operation = item[method]
        self.id = self.operation["operationId"]
        self.parameters = [self.resolve(p) for p in item.get("parameters", []) + self.operation.get("parameters", [])]

    def resolve(self, node: dict) -> dict:
        while "$ref" in node:
            at = self.document
            for key in node["$ref"].removeprefix("#/").split("/"):
                at = at[key]
            node = at
        return node

    def body(self) -> tuple[str | None, bytes | None]:
        """Returns the type and the contents of the request."""
        content = self.resolve(self.operation.get("requestBody", {})).get("content", {})
        media = content.get("application/json")
        if media and "example" in media:
            schema(self.document, media["schema"]).validate(media["example"])
            return "application/json", json.dumps(media["example"]).encode()
        if "image/*" in content:
            return "image/jpeg", jpeg()
        return ("application/octet-stream", b"none") if content else (None, None)

    def send(self, server: Server, ids: dict[str, str]) -> requests.Response:
        path, query, headers = self.path, {}, {}
        for parameter in self.parameters:
            name, place = parameter["name"], parameter["in"]
            value = ids.get(name, parameter.get("example"))
            if place == "path":
                assert value is not None, f"{self.id}: the parameter {name} has no example"
                path = path.replace(f"{{{name}}}", urllib.parse.quote(str(value), safe=""))
            elif value is not None:
                (query if place == "query" else headers)[name] = str(value)
        media, body = self.body()
        if media:
            headers["content-type"] = media
        return requests.request(
            self.method.upper(), server.url + path, params=query, headers=headers, data=body, timeout=TIMEOUT_S
        )

    def check(self, answer: requests.Response, status: int) -> None:
        """Checks status, type and body of an answer."""
        assert answer.status_code == status, f"{self.id}: {answer.status_code} {answer.text[:500]}"
        responses = self.operation["responses"]
        response = responses.get(str(status), responses.get("default"))
        assert response, f"{self.id}: {status} is not described"
        content = self.resolve(response).get("content", {})
        media = answer.headers["content-type"].split(";")[0]
        if not content:
            # A client made of the document would drop the body.
            assert not answer.content, f"{self.id}: the body is not described"
            return
        described = content.get(media, content.get(f"{media.split('/')[0]}/*"))
        assert described is not None, f"{self.id}: {media} is not described"
        if media == "application/json" and "schema" in described:
            schema(self.document, described["schema"]).validate(answer.json())


def schema(document: dict, part: dict) -> Draft202012Validator:
    """Returns a validator of a schema in the document."""
    root = Resource.from_contents(document, default_specification=DRAFT202012)
    registry = Registry().with_resource("urn:openapi", root)
    absolute = json.loads(json.dumps(part).replace('"$ref": "#', '"$ref": "urn:openapi#'))
    return Draft202012Validator(absolute, registry=registry)


def calls(document: dict) -> list[Call]:
    all_calls = [
        Call(document, path, method) for path, item in document["paths"].items() for method in METHODS if method in item
    ]

    def rank(call: Call) -> int:
        if call.id in FIRST:
            return FIRST.index(call.id) - len(FIRST)
        return 1 + LAST.index(call.id) if call.id in LAST else 0

    return sorted(all_calls, key=rank)


def test_the_document_is_valid(document):
    OpenAPIV31SpecValidator(document).validate()
    ids = [call.id for call in calls(document)]
    assert len(ids) == len(set(ids)) >= 90
    assert set(FIRST) | set(LAST) | set(STATUSES) <= set(ids)


def test_example_answers_fit_their_schemas(document):
    checked = 0
    for call in calls(document):
        for response in call.operation["responses"].values():
            for media in call.resolve(response).get("content", {}).values():
                if "example" in media:
                    schema(document, media["schema"]).validate(media["example"])
                    checked += 1
    assert checked > 100


def test_every_call_answers_as_described(served, document):
    ids: dict[str, str] = {}
    for call in calls(document):
        path_ids = ids if "/v1/images/" in call.path else {}
        answer = call.send(served, path_ids)
        call.check(answer, STATUSES.get(call.id, 200))
        if call.id == "addImages":
            ids["id"] = answer.json()["id"]


def test_errors_have_the_described_forms(served, document):
    unknown = {"model": "nope", "collection": "nope", "recogniser": "nope"}
    checked = 0
    for call in calls(document):
        names = {parameter["name"] for parameter in call.parameters if parameter["in"] == "path"}
        if call.method == "get" and names & set(unknown) and call.id not in ("collectionExists",):
            call.check(call.send(served, unknown), 404)
            checked += 1
    assert checked > 15
