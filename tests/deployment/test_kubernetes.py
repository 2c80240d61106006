"""The Helm chart and the runtime of KServe: rendered by helm, checked against the schemas of Kubernetes."""

import json
import pathlib
import re
import subprocess

import jsonschema
import kubernetes_validate
import pytest
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


def helm(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True)


def render(*arguments: str) -> list[dict]:
    result = helm("template", "release", str(CHART), "--kube-version", VERSION, *arguments)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def one(documents: list[dict], kind: str) -> dict:
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


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


@pytest.mark.parametrize("name", VALUES)
def test_rendered_objects_fit_the_schemas(name):
    documents = render(*VALUES[name])
    assert {"Deployment", "Service", "ServiceAccount"} <= {document["kind"] for document in documents}
    for document in documents:
        if document["apiVersion"].startswith(CUSTOM):
            validate_custom(document)
        else:
            kubernetes_validate.validate(document, VERSION, strict=True)


def test_schema_checks_refuse_unknown_fields():
    documents = render(*VALUES["replicated"])
    monitor = one(documents, "ServiceMonitor")
    monitor["spec"]["endpoints"][0]["intervall"] = "5s"
    with pytest.raises(jsonschema.ValidationError):
        validate_custom(monitor)
    deployment = one(documents, "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["readonly"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSION, strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_containers_are_locked_down(name):
    pod = one(render(*VALUES[name]), "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {"/models", "/tmp", "/var/cache/millpond", "/var/lib/millpond"} <= set(mounts)
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("name", VALUES)
def test_selectors_match_the_pods(name):
    documents = render(*VALUES[name])
    labels = one(documents, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    selectors = [one(documents, "Service")["spec"]["selector"]]
    selectors += [document["spec"]["selector"]["matchLabels"] for document in documents
                  if document["kind"] in ("Deployment", "PodDisruptionBudget")]  # fmt: skip
    for selector in selectors:
        assert selector.items() <= labels


def test_probes_ask_the_health_endpoints():
    (container,) = one(render(), "Deployment")["spec"]["template"]["spec"]["containers"]
    paths = [container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")]
    assert paths == ["/readyz", "/readyz", "/livez"]
    sources = "".join(file.read_text() for file in (REPOSITORY / "crates/server/src/http").glob("*.rs"))
    assert all(f'"{path}"' in sources for path in paths)


def test_replicas_without_a_budget_for_one_pod():
    assert not [document for document in render() if document["kind"] == "PodDisruptionBudget"]
    assert one(render("--set", "replicas=2"), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_scaling_on_our_metrics():
    documents = render("--set", "autoscaling.enabled=true,autoscaling.requestsPerSecond=500,autoscaling.queuedRequests=9")
    metrics = one(documents, "HorizontalPodAutoscaler")["spec"]["metrics"]
    names = [metric["pods"]["metric"]["name"] for metric in metrics if metric["type"] == "Pods"]
    assert names == ["millpond_window_requests_per_second", "millpond_queued_requests"]
    assert "replicas" not in one(documents, "Deployment")["spec"]


def test_prometheus_sends_a_key_if_the_server_has_one():
    on = "serviceMonitor.enabled=true"
    (plain,) = one(render("--set", on), "ServiceMonitor")["spec"]["endpoints"]
    assert "authorization" not in plain
    keyed = one(render("--set", f"{on},keysSecret=millpond-keys,serviceMonitor.secretKey=metrics"), "ServiceMonitor")
    validate_custom(keyed)
    assert keyed["spec"]["endpoints"][0]["authorization"] == {"credentials": {"name": "millpond-keys", "key": "metrics"}}


def test_search_keeps_one_writer():
    documents = render(*VALUES["search"])
    assert one(documents, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    settings = one(documents, "ConfigMap")["data"]["millpond.toml"]
    assert 'search-memory = "4GiB"' in settings
    refused = helm("template", "release", str(CHART), "--kube-version", VERSION, "--set", "search.enabled=true,replicas=2")
    assert refused.returncode != 0 and "a collection has one writer" in refused.stderr


@pytest.mark.parametrize("wrong", ["replica=2", "service.httpPort=99999", "image.digest=latest", "probes.readinessPath=ready"])
def test_wrong_values_are_refused(wrong):
    result = helm("template", "release", str(CHART), "--kube-version", VERSION, "--set", wrong)
    assert result.returncode != 0 and "values don't meet the specifications" in result.stderr, result.stderr


def test_lint_is_clean():
    result = helm("lint", "--strict", "--kube-version", VERSION, str(CHART))
    assert result.returncode == 0 and "[WARNING]" not in result.stdout, result.stdout


def test_alerts_and_dashboard_are_passed_on_unchanged():
    documents = render(*VALUES["replicated"])
    assert one(documents, "PrometheusRule")["spec"] == yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    dashboard = one(documents, "ConfigMap")["data"]["millpond.json"]
    assert json.loads(dashboard) == json.loads((CHART / "files/dashboard.json").read_text())


def test_flags_of_the_manifests_exist():
    # A test of the program keeps this reference up to date.
    known = set(re.findall(r"--[\w-]+", (REPOSITORY / "docs/commands.md").read_text()))
    documents = [*render(*VALUES["replicated"]), yaml.safe_load((KUBERNETES / "kserve/runtime.yaml").read_text())]
    for document in documents:
        spec = document.get("spec", {})
        pod = spec.get("template", {}).get("spec", spec)
        for container in pod.get("containers", []):
            flags = {flag.split("=")[0] for flag in container["args"] if flag.startswith("--")}
            assert flags and flags <= known, flags - known


# No registry has the CRDs of KServe, so the parts that are Kubernetes' own are checked, and KServe's by name.
def test_kserve_runtime():
    runtime = yaml.safe_load((KUBERNETES / "kserve/runtime.yaml").read_text())
    assert (runtime["apiVersion"], runtime["kind"]) == ("serving.kserve.io/v1alpha1", "ClusterServingRuntime")
    spec = runtime["spec"]
    assert set(spec) == {"annotations", "supportedModelFormats", "protocolVersions", "containers", "volumes"}
    assert set(spec["protocolVersions"]) == {"v1", "v2", "grpc-v2"}
    assert spec["containers"][0]["name"] == "kserve-container"
    pod = {"containers": spec["containers"], "volumes": spec["volumes"]}
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}, VERSION, strict=True)

    service = yaml.safe_load((KUBERNETES / "kserve/service.yaml").read_text())
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    model = service["spec"]["predictor"]["model"]
    assert set(model) == {"runtime", "modelFormat", "protocolVersion", "storageUri"}
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["protocolVersion"] in spec["protocolVersions"]
    assert model["modelFormat"] in spec["supportedModelFormats"]


def test_manifests_name_the_version_of_this_tree():
    version = re.search(r'^version = "(.*)"', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)[1]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    runtime = yaml.safe_load((KUBERNETES / "kserve/runtime.yaml").read_text())
    assert runtime["spec"]["containers"][0]["image"] == f"millpond:{version}"
