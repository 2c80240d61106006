"""Renders the Helm chart with helm, and checks custom objects against the CRDs of the Prometheus operator."""

import pathlib
import shutil
import subprocess

import jsonschema
import yaml

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = REPOSITORY / "packaging/kubernetes"
CHART = KUBERNETES / "millpond"
HELM = REPOSITORY / ".cache/tools/bin/helm"
# The CRDs of the Prometheus operator.
SCHEMAS = REPOSITORY / ".cache/kubernetes/crds"
VERSION = "1.34"
VALUES = {
    "default": [],
    **{file.stem: ["--values", str(file)] for file in sorted((KUBERNETES / "values").glob("*.yaml"))},
    "nodeport": ["--set", "service.type=NodePort,replicas=3,image.digest=sha256:" + "0" * 64],
}
CUSTOM = "monitoring.coreos.com/"
WORKLOADS = ("Deployment", "StatefulSet")
# The fewest values of a cluster.
CLUSTER = "cluster.enabled=true,cluster.store=s3://images/cluster,cluster.etcd[0]=http://etcd:2379"
GROUP_LABEL = "app.kubernetes.io/component"


def helm(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True)


def render(*arguments: str) -> list[dict]:
    result = helm("template", "release", str(CHART), "--kube-version", VERSION, *arguments)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def one(documents: list[dict], kind: str) -> dict:
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def workloads(documents: list[dict]) -> list[dict]:
    return [document for document in documents if document["kind"] in WORKLOADS]


def of_group(documents: list[dict], kind: str, group: str) -> dict:
    return one([document for document in documents if document["metadata"]["labels"].get(GROUP_LABEL) == group], kind)


def container(workload: dict) -> dict:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return found


def flags(workload: dict) -> dict[str, str]:
    """Returns the values of the flags in the form --NAME=VALUE."""
    pairs = [argument.split("=", 1) for argument in container(workload)["args"] if "=" in argument]
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def refused(*values: str) -> str:
    """Returns helm's message about wrong values."""
    arguments = [argument for value in values for argument in ("--set", value)]
    result = helm("template", "release", str(CHART), "--kube-version", VERSION, *arguments)
    assert result.returncode != 0, values
    return result.stderr


def notes(directory: pathlib.Path, *arguments: str) -> str:
    """Returns the notes that helm shows after an installation, rendered in a copy of the chart in `directory`."""
    copy = directory / "millpond"
    shutil.copytree(CHART, copy, dirs_exist_ok=True)
    shutil.copy(CHART / "templates/NOTES.txt", copy / "notes")
    # `helm template` shows no notes, but it shows the message of `fail`.
    (copy / "templates/notes.yaml").write_text('{{- fail (tpl (.Files.Get "notes") .) }}')
    result = helm("template", "release", str(copy), "--kube-version", VERSION, *arguments)
    assert "Millpond" in result.stderr, result.stderr
    return result.stderr


def closed(schema: dict) -> dict:
    """Returns a schema that refuses unknown fields, as `kubectl --validate=strict` does."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    # Go's regular expressions may set flags after "^", Python's may not.
    if isinstance(schema.get("pattern"), str):
        result["pattern"] = schema["pattern"].replace("^(?i)", "(?i)^")
    return result


def validate_custom(document: dict) -> None:
    plural = f"{document['kind'].lower()}s"
    (file,) = SCHEMAS.glob(f"*_{plural}.yaml")
    versions = yaml.safe_load(file.read_text())["spec"]["versions"]
    named = document["apiVersion"].split("/")[1]
    (schema,) = [version["schema"]["openAPIV3Schema"] for version in versions if version["name"] == named]
    top = closed(schema)
    top["properties"]["metadata"] = {"type": "object"}
    jsonschema.validate(document, top)
