"""The Helm chart and the runtime of KServe: rendered by helm, checked against the schemas of Kubernetes."""

import json
import re

import jsonschema
import kubernetes_validate
import pytest
import yaml
from chart import (
    CHART,
    CLUSTER,
    CUSTOM,
    GROUP_LABEL,
    KUBERNETES,
    REPOSITORY,
    VALUES,
    VERSION,
    WORKLOADS,
    container,
    flags,
    helm,
    notes,
    of_group,
    one,
    refused,
    render,
    validate_custom,
    workloads,
)


@pytest.mark.parametrize("name", VALUES)
def test_rendered_objects_fit_the_schemas(name):
    documents = render(*VALUES[name])
    assert {"Deployment", "Service", "ServiceAccount"} <= {document["kind"] for document in documents}
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(names)) == len(names), names
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
    for workload in workloads(render(*VALUES[name])):
        pod, own = workload["spec"]["template"]["spec"], container(workload)
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532
        assert own["securityContext"]["readOnlyRootFilesystem"]
        assert own["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in own["volumeMounts"]}
        assert {"/tmp", "/var/cache/millpond", "/var/lib/millpond"} <= set(mounts)
        assert ("/models" in mounts) == ("/models" in own["args"])
        claimed = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])]
        assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]} | set(claimed)


@pytest.mark.parametrize("name", VALUES)
def test_selectors_match_the_pods(name):
    documents = render(*VALUES[name])
    pods = {workload["metadata"]["name"]: workload["spec"]["template"]["metadata"]["labels"] for workload in workloads(documents)}
    for document in documents:
        if document["kind"] not in (*WORKLOADS, "Service", "PodDisruptionBudget"):
            continue
        selector = document["spec"]["selector"]
        selector = selector.get("matchLabels", selector)
        selected = {name for name, labels in pods.items() if selector.items() <= labels.items()}
        # The Service of clients has the nodes with the role root, or the only Deployment.
        if document["metadata"]["name"] == "release-millpond" and len(pods) > 1:
            assert selected == {name for name, labels in pods.items() if "role.millpond/root" in labels}
        else:
            assert selected == {document["metadata"]["name"].removesuffix("-admin")}


def test_probes_ask_the_health_endpoints():
    # A server that loads models or restores shards for long is not killed meanwhile, nor one with a broken model.
    for values in ("default", "cluster"):
        for workload in workloads(render(*VALUES[values])):
            probes = [container(workload)[f"{probe}Probe"]["httpGet"] for probe in ("startup", "readiness", "liveness")]
            assert [probe["path"] for probe in probes] == ["/livez", "/readyz", "/livez"]
            assert {probe["port"] for probe in probes} == {"http"}
    sources = "".join(file.read_text() for file in (REPOSITORY / "crates/server/src/http").glob("*.rs"))
    assert all(f'"{path}"' in sources for path in ("/readyz", "/livez"))


def test_replicas_without_a_budget_for_one_pod():
    assert not [document for document in render() if document["kind"] == "PodDisruptionBudget"]
    assert one(render("--set", "replicas=2"), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("given, rendered", [("2", 2), ("50%", "50%")])
def test_the_budget_may_be_text(given, rendered):
    documents = render("--set", "replicas=3", "--set-string", f"podDisruptionBudget.maxUnavailable={given}")
    assert one(documents, "PodDisruptionBudget")["spec"]["maxUnavailable"] == rendered


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


def test_cache_has_room_for_the_copies_of_stores():
    pod = one(render(), "Deployment")["spec"]["template"]["spec"]
    (cache,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "cache"]
    commands = (REPOSITORY / "docs/commands.md").read_text()
    copies = re.search(r"--store-cache <BYTES>\n[^-]*?\[default: (\d+)GiB\]", commands)[1]
    assert int(cache["sizeLimit"].removesuffix("Gi")) > int(copies)


def test_no_pause_before_the_end():
    # Kubernetes before 1.33 refuses a pause of 0 s.
    assert container(one(render(), "Deployment"))["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}
    assert "lifecycle" not in container(one(render("--set", "preStopSeconds=0"), "Deployment"))


def test_no_server_starts_without_the_wanted_keys():
    documents = render("--set", "keysSecret=millpond-keys")
    entries = container(one(documents, "Deployment"))["env"]
    # A server whose keys are empty does not start.
    assert {"name": "MILLPOND_REQUIRE_KEY", "value": "1"} in entries
    variables = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in entries if "valueFrom" in entry}
    assert variables["MILLPOND_API_KEY"] == {"name": "millpond-keys", "key": "api-key"}
    assert variables["MILLPOND_ADMIN_KEY"] == {"name": "millpond-keys", "key": "admin-key", "optional": True}


@pytest.mark.parametrize("name", ["default", "cluster"])
def test_pods_have_the_volumes_variables_and_containers_of_the_values(name):
    more = ["envFrom[0].secretRef.name=s3-credentials", "extraVolumes[0].name=keys", "extraVolumes[0].secret.secretName=file",
            "extraVolumeMounts[0].name=keys", "extraVolumeMounts[0].mountPath=/etc/millpond-keys", "priorityClassName=high",
            "initContainers[0].name=fetch", "initContainers[0].image=fetch:1"]  # fmt: skip
    documents = render(*VALUES[name], *(argument for value in more for argument in ("--set", value)))
    for workload in workloads(documents):
        kubernetes_validate.validate(workload, VERSION, strict=True)
        pod, own = workload["spec"]["template"]["spec"], container(workload)
        secrets = [entry["secretRef"]["name"] for entry in own["envFrom"]]
        assert secrets == [*(["millpond-store"] if name == "cluster" else []), "s3-credentials"]
        assert pod["volumes"][-1] == {"name": "keys", "secret": {"secretName": "file"}}
        assert own["volumeMounts"][-1] == {"name": "keys", "mountPath": "/etc/millpond-keys"}
        assert pod["initContainers"] == [{"name": "fetch", "image": "fetch:1"}]
        assert pod["priorityClassName"] == "high"


def test_containers_that_mount_models_run_beside_models():
    more = ["cluster.groups.extract.enabled=true", "initContainers[0].name=wait", "initContainers[0].image=wait:1",
            "initContainers[1].name=fetch", "initContainers[1].image=fetch:1", "initContainers[1].volumeMounts[0].name=models",
            "initContainers[1].volumeMounts[0].mountPath=/models"]  # fmt: skip
    for workload in workloads(render("--set", ",".join([CLUSTER, *more]))):
        pod = workload["spec"]["template"]["spec"]
        names = [container["name"] for container in pod["initContainers"]]
        assert names == (["wait", "fetch"] if "models" in [volume["name"] for volume in pod["volumes"]] else ["wait"])


def test_groups_have_priorities_of_their_own():
    own = "priorityClassName=high,cluster.groups.search.priorityClassName=higher"
    found = {workload["metadata"]["name"]: workload["spec"]["template"]["spec"]["priorityClassName"]
             for workload in workloads(render("--set", f"{CLUSTER},{own}"))}  # fmt: skip
    assert found == {"release-millpond-root": "high", "release-millpond-search": "higher", "release-millpond-ingest": "high"}


def test_volumes_of_the_chart_are_not_repeated():
    # An upgrade would merge both entries.
    assert "extraVolumes: cache: the chart has" in refused("extraVolumes[0].name=cache")
    mount = "extraVolumeMounts[0].name=a,extraVolumeMounts[0].mountPath=/tmp/"
    assert "extraVolumeMounts: /tmp/: the chart mounts" in refused(mount)


def test_notes_say_if_no_server_has_models(tmp_path):
    extract = f"{CLUSTER},cluster.groups.extract.enabled=true"
    for values, place in (("replicas=1", "args"), (extract, "cluster.groups.extract.args")):
        assert f"add its URL to {place}." in notes(tmp_path, "--set", values)
        assert "/models is empty" not in notes(tmp_path, "--set", f"{values},{place}={{s3://ranking/models}}")


def test_search_keeps_one_writer():
    documents = render(*VALUES["search"])
    assert one(documents, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    settings = one(documents, "ConfigMap")["data"]["millpond.toml"]
    assert 'search-memory = "4GiB"' in settings
    assert "a collection has one writer" in refused("search.enabled=true,replicas=2")
    # The server would run without the collections of the claim.
    assert "search.existingClaim has no effect" in refused("search.existingClaim=images")


def test_settings_may_begin_with_an_indented_line():
    text = "  # Of the fleet.\n[server]\nmax-requests = 9\n"
    assert one(render("--set", f"settings={text}"), "ConfigMap")["data"]["millpond.toml"].rstrip() == text.rstrip()


def test_a_cache_has_one_server():
    documents = render("--set", "cache.existingClaim=cache")
    assert one(documents, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    for more in ("replicas=2", "autoscaling.enabled=true"):
        assert "each server needs a cache of its own" in refused(f"cache.existingClaim=cache,{more}")


def test_models_on_one_machine_have_no_second_pod_during_an_update():
    # On another machine, the new pod would wait for the volume, and the old one for the new pod.
    for mode in ("ReadWriteOnce", "ReadWriteOncePod"):
        single = f"models.create=true,models.accessModes={{{mode}}}"
        assert one(render("--set", single), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
        claimed = render("--set", f"{single},models.existingClaim=models")
        assert one(claimed, "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"
    assert one(render("--set", "models.create=true"), "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"
    for more in ("replicas=2", "autoscaling.enabled=true"):
        assert "ReadWriteOncePod needs replicas: 1" in refused(f"{single},{more}")


def test_openshift_chooses_the_user():
    on = ["--api-versions", "security.openshift.io/v1"]
    for values in ("default", "cluster"):
        for workload in workloads(render(*VALUES[values], *on)):
            context = workload["spec"]["template"]["spec"]["securityContext"]
            assert {"runAsUser", "runAsGroup", "fsGroup"}.isdisjoint(context) and context["runAsNonRoot"]
    own = one(render(*on, "--set", "podSecurityContext.fsGroup=1000"), "Deployment")["spec"]["template"]["spec"]
    assert own["securityContext"]["fsGroup"] == 1000 and "runAsUser" not in own["securityContext"]


def test_names_that_look_like_numbers_stay_text():
    text = "keysSecret=123,models.existingClaim=1.5,models.subPath=2024,serviceMonitor.secretKey=1"
    # YAML 1.1 reads "on" as true.
    result = helm("template", "on", str(CHART), "--kube-version", VERSION, "--set", "serviceMonitor.enabled=true",
                  "--set-string", text)  # fmt: skip
    documents = [document for document in yaml.safe_load_all(result.stdout) if document]
    for document in documents:
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "on"
        if not document["apiVersion"].startswith(CUSTOM):
            kubernetes_validate.validate(document, VERSION, strict=True)
    (mount,) = [mount for mount in container(one(documents, "Deployment"))["volumeMounts"] if mount["name"] == "models"]
    assert mount["subPath"] == "2024"
    (endpoint,) = one(documents, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "123", "key": "1"}}


def test_a_grace_time_ends_before_kubernetes_kills_the_pod():
    words = "is shorter than preStopSeconds and shutdown-grace together"
    assert f"{words}, which are 125" in refused("args={--shutdown-grace=2m}")
    assert f"{words}, which are 46" in refused("settings=[server]\n  shutdown-grace = '41s'")
    assert words in refused("args={--max-batch=8,--shutdown-grace,2m}")
    assert words in refused(CLUSTER, "cluster.groups.ingest.args={--shutdown-grace=61}")
    # Nodes with the role ingest have no pause. Flags take precedence over settings.
    assert render("--set", CLUSTER, "--set", "cluster.groups.ingest.args={--shutdown-grace=60}")
    for values in ("args={--shutdown-grace=40s}", "args={--shutdown-grace=900ms}", "args={--shutdown-grace=0}"):
        assert render("--set", values, "--set", "settings=server.shutdown-grace = '5min'")
    assert render("--set", "args={--shutdown-grace=2m},terminationGracePeriodSeconds=125")


def test_a_pause_ends_before_kubernetes_kills_the_pod():
    words = "is shorter than preStopSeconds 5"
    assert words in refused("terminationGracePeriodSeconds=4")
    assert words in refused(CLUSTER, "cluster.terminationGracePeriodSeconds=4")
    # Kubernetes accepts a pause that takes the whole time.
    for enough in ("terminationGracePeriodSeconds=5", "terminationGracePeriodSeconds=0,preStopSeconds=0"):
        assert render("--set", enough)


def test_the_least_replicas_are_not_above_the_most():
    scaling = "autoscaling.enabled=true,autoscaling.minReplicas=20"
    assert "minReplicas 20 is above maxReplicas 10" in refused(scaling)
    group = f"cluster.groups.extract.enabled=true,cluster.groups.extract.{scaling.replace(',', ',cluster.groups.extract.')}"
    assert "minReplicas 20 is above maxReplicas 10" in refused(CLUSTER, group)


@pytest.mark.parametrize("wrong", ["replica=2", "service.httpPort=99999", "image.digest=latest", "probes.readinessPath=ready",
                                   "podDisruptionBudget.maxUnavailable=most", "imagePullSecrets={registry}",
                                   "envFrom[0].secret.name=a", "ingress.http.paths={models}", "networkPolicy.clients={ingress}",
                                   "env[0].name=AWS_MAX_ATTEMPTS,env[0].value=8"])
def test_wrong_values_are_refused(wrong):
    assert "values don't meet the specifications" in refused(wrong)


def test_groups_of_a_cluster():
    documents = render(*VALUES["cluster"])
    found = {
        workload["metadata"]["labels"][GROUP_LABEL]: (
            workload["kind"],
            flags(workload)["--cluster-roles"],
            flags(workload).get("--collections-dir"),
            "/models" in container(workload)["args"],
            "preStop" in container(workload).get("lifecycle", {}),
        )
        for workload in workloads(documents)
    }
    assert found == {
        "root": ("Deployment", "root", "none", False, True),
        "search": ("StatefulSet", "search", None, False, False),
        "ingest": ("StatefulSet", "ingest", "none", False, False),
        "extract": ("Deployment", "extract", "none", True, True),
    }
    for workload in workloads(documents):
        group = workload["metadata"]["labels"][GROUP_LABEL]
        assert workload["metadata"]["name"] == f"release-millpond-{group}"
        service = of_group(documents, "Service", group)
        assert service["spec"].get("clusterIP") == ("None" if workload["kind"] == "StatefulSet" else None)
        assert workload["spec"].get("serviceName", service["metadata"]["name"]) == service["metadata"]["name"]
        ports = {port["name"]: port["containerPort"] for port in container(workload)["ports"]}
        assert ports == {port["name"]: port["port"] for port in service["spec"]["ports"]} == {"http": 8501, "grpc": 8500}
        assert of_group(documents, "PodDisruptionBudget", group)["spec"]["maxUnavailable"] == 1
        assert workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 60
    (clients,) = [document for document in documents
                  if document["kind"] == "Service" and GROUP_LABEL not in document["metadata"]["labels"]]  # fmt: skip
    assert (clients["metadata"]["name"], clients["spec"]["selector"]["role.millpond/root"]) == ("release-millpond", "true")


def test_servers_listen_for_ipv4_and_ipv6():
    for values in ("default", "cluster"):
        for workload in workloads(render(*VALUES[values])):
            assert flags(workload)["--host"] == "::"
    (runtime,) = yaml.safe_load_all((KUBERNETES / "kserve/runtime.yaml").read_text())
    assert "--host=::" in runtime["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("name", ["default", "cluster"])
def test_services_have_the_wanted_families_of_addresses(name):
    def services(*more):
        found = [document for document in render(*VALUES[name], *more) if document["kind"] == "Service"]
        for service in found:
            kubernetes_validate.validate(service, VERSION, strict=True)
        return [service["spec"] for service in found]

    assert all({"ipFamilyPolicy", "ipFamilies"}.isdisjoint(spec) for spec in services())
    both = services("--set", "service.ipFamilyPolicy=PreferDualStack,service.ipFamilies={IPv6,IPv4}")
    assert both and all(spec["ipFamilyPolicy"] == "PreferDualStack" for spec in both)
    assert all(spec["ipFamilies"] == ["IPv6", "IPv4"] for spec in both)


@pytest.mark.parametrize("name", ["default", "cluster"])
def test_grpc_clients_can_find_all_pods(name):
    on = "service.headless=true,service.grpcPort=80,serviceMonitor.enabled=true"
    documents = render(*VALUES[name], "--set", on)
    services = {document["metadata"]["name"]: document for document in documents if document["kind"] == "Service"}
    clients, headless = services["release-millpond"], services["release-millpond-headless"]
    kubernetes_validate.validate(headless, VERSION, strict=True)
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["selector"] == clients["spec"]["selector"]
    # The port of the pods. Without the port http, Prometheus does not read them twice.
    assert [(port["name"], port["port"]) for port in headless["spec"]["ports"]] == [("grpc", 8500)]
    assert one(documents, "ServiceMonitor")["spec"]["endpoints"][0]["port"] == "http"
    assert GROUP_LABEL not in headless["metadata"]["labels"]
    assert "release-millpond-headless" not in {document["metadata"]["name"] for document in render(*VALUES[name])}


def test_nodes_find_the_store_etcd_and_each_other():
    for workload in workloads(render(*VALUES["cluster"])):
        found = flags(workload)
        assert found["--cluster-store"] == "s3://images/cluster"
        assert found["--cluster-etcd"] == "http://etcd-0.etcd:2379,http://etcd-1.etcd:2379,http://etcd-2.etcd:2379"
        assert found["--cluster-name"] == "default.release-millpond"
        assert found["--cluster-node"] == "$(POD_NAME)"
        assert found["--cluster-address"] == "$(POD_IP):8501"
        fields = {entry["name"]: entry.get("valueFrom", {}) for entry in container(workload)["env"]}
        assert fields["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
        assert fields["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        # Without it, nodes with an admin-key alone would refuse each other.
        assert fields["MILLPOND_API_KEY"] == {"secretKeyRef": {"name": "millpond-keys", "key": "api-key"}}
        assert container(workload)["envFrom"] == [{"secretRef": {"name": "millpond-store"}}]
    assert "envFrom" not in container(of_group(render("--set", CLUSTER), "Deployment", "root"))


def test_etcd_with_certificates_and_a_user():
    secrets = "cluster.etcdTls.secret=etcd-tls,cluster.etcdUserSecret=etcd-user,cluster.etcd[0]=https://etcd:2379"
    for certificate in ("false", "true"):
        documents = render("--set", f"{CLUSTER},{secrets},cluster.etcdTls.clientCertificate={certificate}")
        for document in documents:
            kubernetes_validate.validate(document, VERSION, strict=True)
        for workload in workloads(documents):
            found = {name: value for name, value in flags(workload).items() if name.startswith("--cluster-etcd")}
            wanted = {"--cluster-etcd": "https://etcd:2379", "--cluster-etcd-ca": "/etc/millpond-etcd/ca.crt"}
            own = {"--cluster-etcd-cert": "/etc/millpond-etcd/tls.crt", "--cluster-etcd-key": "/etc/millpond-etcd/tls.key"}
            assert found == (wanted | own if certificate == "true" else wanted)
            volumes = {volume["name"]: volume for volume in workload["spec"]["template"]["spec"]["volumes"]}
            assert volumes["etcd"]["secret"] == {"secretName": "etcd-tls"}
            mounts = {mount["name"]: mount["mountPath"] for mount in container(workload)["volumeMounts"]}
            assert mounts["etcd"] == "/etc/millpond-etcd"
            variables = {entry["name"]: entry["valueFrom"] for entry in container(workload)["env"]}
            assert variables["MILLPOND_ETCD_USER"] == {"secretKeyRef": {"name": "etcd-user", "key": "username"}}
            assert variables["MILLPOND_ETCD_PASSWORD"] == {"secretKeyRef": {"name": "etcd-user", "key": "password"}}


def test_search_nodes_have_local_volumes_on_different_machines():
    search = of_group(render(*VALUES["cluster"]), "StatefulSet", "search")
    spec, pod = search["spec"], search["spec"]["template"]["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "local-nvme"
    assert claim["spec"]["resources"]["requests"]["storage"] == "1500Gi"
    # A claim's labels cannot change, so none may name a version.
    assert set(claim["metadata"]["labels"]) == {"app.kubernetes.io/name", "app.kubernetes.io/instance", GROUP_LABEL}
    assert {mount["mountPath"]: mount["name"] for mount in container(search)["volumeMounts"]}["/var/lib/millpond"] == "data"
    assert (spec["minReadySeconds"], spec["podManagementPolicy"]) == (30, "Parallel")
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    labels = spec["template"]["metadata"]["labels"].items()
    assert rule["labelSelector"]["matchLabels"].items() <= labels
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["topologyKey"] == "topology.kubernetes.io/zone" and spread["labelSelector"]["matchLabels"].items() <= labels
    assert pod["nodeSelector"] == {"disk": "nvme"}
    preferred = of_group(render("--set", f"{CLUSTER},cluster.groups.search.antiAffinity=preferred"), "StatefulSet", "search")
    rules = preferred["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    assert list(rules) == ["preferredDuringSchedulingIgnoredDuringExecution"]


def test_extraction_scales_by_itself():
    documents = render(*VALUES["cluster"])
    scaler = one(documents, "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "release-millpond-extract"}
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 40)
    extract = of_group(documents, "Deployment", "extract")
    assert "replicas" not in extract["spec"]
    assert flags(extract)["--embedding-model"] == "embedder"
    volumes = {volume["name"]: volume for volume in extract["spec"]["template"]["spec"]["volumes"]}
    assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "models"}


def test_roles_can_share_nodes():
    shared = "cluster.groups.search.roles={search,ingest}"
    documents = render("--set", CLUSTER, "--set", "cluster.groups.ingest=null", "--set", shared)
    roles = {workload["metadata"]["name"]: flags(workload)["--cluster-roles"] for workload in workloads(documents)}
    assert roles == {"release-millpond-root": "root", "release-millpond-search": "search,ingest"}
    all_roles = ["cluster.groups.all.roles={root,search,ingest,extract}", "cluster.groups.all.replicas=3"]
    none = [f"cluster.groups.{group}=null" for group in ("root", "search", "ingest", "extract")]
    documents = render(*(argument for value in (CLUSTER, *all_roles, *none) for argument in ("--set", value)))
    (workload,) = workloads(documents)
    assert (workload["kind"], workload["metadata"]["name"]) == ("StatefulSet", "release-millpond-all")
    assert workload["spec"]["volumeClaimTemplates"] and "/models" in container(workload)["args"]
    for document in documents:
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_prometheus_asks_each_node_once():
    documents = render(*VALUES["cluster"])
    selector = one(documents, "ServiceMonitor")["spec"]["selector"]
    assert selector["matchExpressions"] == [{"key": GROUP_LABEL, "operator": "Exists"}]
    services = [document["metadata"]["labels"] for document in documents if document["kind"] == "Service"]
    monitored = [labels[GROUP_LABEL] for labels in services
                 if GROUP_LABEL in labels and selector["matchLabels"].items() <= labels.items()]  # fmt: skip
    assert sorted(monitored) == ["extract", "ingest", "root", "search"]


def test_long_names_leave_room_for_hashes():
    result = helm("template", "a" * 53, str(CHART), "--kube-version", VERSION, "--set", CLUSTER)
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(result.stdout) if document["kind"] in WORKLOADS]
    assert len(set(names)) == 3 and all(len(name) <= 52 for name in names), names


def test_releases_whose_services_kubernetes_refuses():
    for version, accepted in (("1.35", False), ("1.36", True)):
        result = helm("template", "1234", str(CHART), "--kube-version", version)
        assert (result.returncode == 0) == accepted and ("begins with a digit" in result.stderr) != accepted, result.stderr


def test_values_that_the_templates_need_are_named():
    for value, name in (("args", "args"), ("settings", "settings"), ("tls", "tls"), ("ingress.http.paths", "paths")):
        result = helm("template", "release", str(CHART), "--kube-version", VERSION, "--set", f"{value}=null")
        assert result.returncode != 0, value
        assert "values don't meet the specifications" in result.stderr and name in result.stderr, result.stderr


def test_values_of_a_cluster_need_a_cluster():
    for values in ("cluster.store=s3://images/cluster", "cluster.etcd[0]=http://etcd:2379"):
        assert "have no effect without cluster.enabled" in refused(values)


WRONG_CLUSTERS = {
    "no store": (["cluster.enabled=true", "cluster.etcd[0]=http://etcd:2379"], "at '/cluster/store'"),
    "no etcd": (["cluster.enabled=true", "cluster.store=s3://b/c"], "at '/cluster/etcd'"),
    "directory": ([CLUSTER, "cluster.store=/data"], "at '/cluster/store'"),
    "path": ([CLUSTER, "cluster.etcd[0]=http://etcd:2379/v3"], "at '/cluster/etcd/0'"),
    "no issuer": ([CLUSTER, "cluster.etcd[0]=https://etcd:2379"], "needs cluster.etcdTls.secret"),
    "half TLS": ([CLUSTER, "cluster.etcd[1]=https://etcd:2379"], "write all with https://"),
    "unused TLS": ([CLUSTER, "cluster.etcdTls.secret=etcd"], "cluster.etcdTls has no effect"),
    "no port": ([CLUSTER, "cluster.etcd[0]=http://etcd"], "at '/cluster/etcd/0'"),
    "unknown role": ([CLUSTER, "cluster.groups.root.roles={rot}"], "at '/cluster/groups/root/roles/0'"),
    "no roles": ([CLUSTER, "cluster.groups.more.replicas=2"], "missing property 'roles'"),
    "unknown field": ([CLUSTER, "cluster.groups.root.replica=2"], "additional properties 'replica'"),
    "name of a group": ([CLUSTER, "cluster.groups.Root.roles={root}"], "invalid propertyName 'Root'"),
    "missing role": ([CLUSTER, "cluster.groups.ingest.enabled=false"], "no enabled group of cluster.groups has the role ingest"),
    "scaled shards": ([CLUSTER, "cluster.groups.search.autoscaling.enabled=true"], "because shards move"),
    "unused volume": ([CLUSTER, "cluster.groups.root.volume.size=1Gi"], "volume has no effect"),
    "unused models": ([CLUSTER, "models.create=true"], "models has no effect in a cluster without the role extract"),
    "replicas": ([CLUSTER, "replicas=2"], "set cluster.groups.NAME.replicas"),
    "scaling": ([CLUSTER, "autoscaling.enabled=true"], "set cluster.groups.NAME.autoscaling"),
    "search": ([CLUSTER, "search.enabled=true"], "search.enabled has no effect"),
    "cache": ([CLUSTER, "cache.existingClaim=x"], "cache.existingClaim has no effect"),
}


@pytest.mark.parametrize("values,words", WRONG_CLUSTERS.values(), ids=WRONG_CLUSTERS.keys())
def test_wrong_clusters_are_refused(values, words):
    assert words in refused(*values)


def test_lint_is_clean():
    result = helm("lint", "--strict", "--kube-version", VERSION, str(CHART))
    assert result.returncode == 0 and "[WARNING]" not in result.stdout, result.stdout


def test_alerts_and_dashboard_are_passed_on_unchanged():
    documents = render(*VALUES["replicated"])
    assert one(documents, "PrometheusRule")["spec"] == yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    dashboard = one(documents, "ConfigMap")["data"]["millpond.json"]
    assert json.loads(dashboard) == json.loads((CHART / "files/dashboard.json").read_text())


@pytest.mark.parametrize("values", ["adminPort=0", "adminPort=8502", CLUSTER, f"{CLUSTER},adminPort=8502"])
def test_alerts_find_the_jobs_of_a_release_with_a_long_name(values):
    on = f"{values},serviceMonitor.enabled=true,alerts.enabled=true"
    for release in ("release", "a" * 53, "a" * 44):
        result = helm("template", release, str(CHART), "--kube-version", VERSION, "--set", on)
        documents = [document for document in yaml.safe_load_all(result.stdout) if document]
        (down,) = [rule for group in one(documents, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]
                   if rule["alert"] == "MillpondDown"]  # fmt: skip
        jobs = re.fullmatch(r'up\{job=~"(.*)"\} == 0', down["expr"])[1]
        monitor = one(documents, "ServiceMonitor")["spec"]
        component = "matchExpressions" in monitor["selector"]
        scraped = [document["metadata"]["name"] for document in documents if document["kind"] == "Service"
                   and monitor["endpoints"][0]["port"] in [port["name"] for port in document["spec"]["ports"]]
                   and (GROUP_LABEL in document["metadata"]["labels"] or not component)]  # fmt: skip
        assert scraped and all(re.fullmatch(jobs, name) for name in scraped), (jobs, scraped)


def test_flags_of_the_manifests_exist():
    # A test of the program keeps this reference up to date.
    known = set(re.findall(r"--[\w-]+", (REPOSITORY / "docs/commands.md").read_text()))
    rendered = [document for name in ("replicated", "cluster", "ingress") for document in render(*VALUES[name])]
    documents = [*rendered, yaml.safe_load((KUBERNETES / "kserve/runtime.yaml").read_text())]
    for document in documents:
        spec = document.get("spec", {})
        pod = spec.get("template", {}).get("spec", spec)
        for own in pod.get("containers", []):
            given = {flag.split("=")[0] for flag in own["args"] if flag.startswith("--")}
            assert given and given <= known, given - known


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

    # OpenShift refuses pods that name a user.
    assert spec["containers"][0]["securityContext"]["runAsNonRoot"] and "runAsUser" not in str(spec)

    # A runtime cannot set the time that Kubernetes waits: the default is 30 s.
    own = dict(flag.split("=", 1) for flag in spec["containers"][0]["args"] if flag.startswith("--"))
    grace_s = int(own["--shutdown-grace"].removesuffix("s"))
    assert grace_s < 30 and "lifecycle" not in spec["containers"][0]

    text = (KUBERNETES / "kserve/service.yaml").read_text()
    # The lines for clusters without Knative.
    wait_s = int(re.search(r"# terminationGracePeriodSeconds: (\d+)", text)[1])
    pause_s = int(re.search(r"# lifecycle: \{preStop: \{sleep: \{seconds: (\d+)\}\}\}", text)[1])
    assert wait_s > grace_s + pause_s
    service = yaml.safe_load(text)
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
