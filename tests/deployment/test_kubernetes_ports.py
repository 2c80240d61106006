"""TLS, the admin port, ingresses and network policies in the Helm chart."""

import kubernetes_validate
import pytest
from chart import CLUSTER, GROUP_LABEL, VALUES, VERSION, container, flags, of_group, one, refused, render, validate_custom


def test_probes_follow_tls_and_the_admin_port():
    documents = render("--set", "tls.secret=certificate,adminPort=8502")
    for document in documents:
        kubernetes_validate.validate(document, VERSION, strict=True)
    deployment = one(documents, "Deployment")
    found = flags(deployment)
    assert (found["--tls-cert"], found["--tls-key"]) == ("/etc/millpond-tls/tls.crt", "/etc/millpond-tls/tls.key")
    assert found["--admin-port"] == "8502"
    own = container(deployment)
    assert {"name": "tls", "mountPath": "/etc/millpond-tls", "readOnly": True} in own["volumeMounts"]
    assert {"name": "tls", "secret": {"secretName": "certificate"}} in deployment["spec"]["template"]["spec"]["volumes"]
    assert {"name": "admin", "containerPort": 8502} in own["ports"]
    # All ports answer the health endpoints.
    for probe in ("startup", "readiness", "liveness"):
        assert {"port": "http", "scheme": "HTTPS"}.items() <= own[f"{probe}Probe"]["httpGet"].items()
    clients, admin = [document for document in documents if document["kind"] == "Service"]
    assert [port["appProtocol"] for port in clients["spec"]["ports"]] == ["https", "https"]
    assert (admin["metadata"]["name"], admin["spec"].get("type", "ClusterIP")) == ("release-millpond-admin", "ClusterIP")
    assert [(port["name"], port["port"], port["targetPort"]) for port in admin["spec"]["ports"]] == [("admin", 8502, "admin")]


def test_prometheus_follows_tls_and_the_admin_port():
    checked = "serviceMonitor.tlsConfig.serverName=mill.example"
    monitor = one(render("--set", f"serviceMonitor.enabled=true,adminPort=8502,tls.secret=certificate,{checked}"), "ServiceMonitor")
    validate_custom(monitor)
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["scheme"]) == ("admin", "https")
    assert endpoint["tlsConfig"] == {"serverName": "mill.example"}
    (plain,) = one(render("--set", "serviceMonitor.enabled=true"), "ServiceMonitor")["spec"]["endpoints"]
    assert plain["port"] == "http" and "scheme" not in plain
    documents = render("--set", f"{CLUSTER},adminPort=8502,serviceMonitor.enabled=true")
    assert one(documents, "ServiceMonitor")["spec"]["endpoints"][0]["port"] == "admin"
    for document in documents:
        if document["kind"] == "Service":
            ports = [port["name"] for port in document["spec"]["ports"]]
            # The Service of clients has no component and no admin port.
            assert ("admin" in ports) == (GROUP_LABEL in document["metadata"]["labels"])


WRONG_LISTENERS = {
    "certificate": (["args={--tls-cert,/models/a.pem}"], "args: --tls-cert: set tls.secret"),
    "key": (["args={--tls-key=/models/a.pem}"], "args: --tls-key: set tls.secret"),
    "client certificates": (["args={--tls-client-ca=/models/ca.pem}"], "probes of Kubernetes show no client certificate"),
    "admin port": (["args={--admin-port=8502}"], "args: --admin-port: set adminPort"),
    "admin host": (["adminPort=8502,args={--admin-host=127.0.0.1}"], "args: --admin-host: leave it out"),
    "port": (["args={--http-port=80}"], "args: --http-port: the pods listen on 8501"),
    "address": (["args={--host=127.0.0.1}"], "args: --host: leave it out: the pods listen on all addresses"),
    "address in two": (["args={--host,127.0.0.1}"], "args: --host: leave it out"),
    "collections": (["args={--collections-dir=/srv}"], "args: --collections-dir: leave it out: set search.enabled"),
    "collections of a cluster": ([CLUSTER, "cluster.groups.root.args={--collections-dir=/a}"], "groups with the role search"),
    "name of a cluster": ([CLUSTER, "args={--cluster-name=a}"], "args: --cluster-name: leave it out: the chart sets it"),
    "node": ([CLUSTER, "cluster.groups.root.args={--cluster-node=a}"], "args: --cluster-node: leave it out"),
    "ports of the Service": (["service.httpPort=80,service.grpcPort=80"], "service.grpcPort are both 80"),
    "settings": (["settings=[server]\n  admin-port = 8502"], "settings: admin-port: set adminPort"),
    "dotted key": (["settings=server.tls-cert = 'a'"], "settings: tls-cert: set tls.secret"),
    "setting without effect": (["settings=[search]\n  collections-dir = 'a'"], "settings: collections-dir: leave it out"),
    "setting of a cluster": ([CLUSTER, "settings=[cluster]\n  cluster-name = 'a'"], "settings: cluster-name: leave it out"),
    "two files": (["settings=[server]\n  max-requests = 9", "args={--config=/a.toml}"], "args: --config: leave it out"),
    "same port": (["adminPort=8501"], "adminPort 8501 is the port of HTTP"),
    "unchecked": (["tls.secret=a,serviceMonitor.enabled=true"], "needs serviceMonitor.tlsConfig"),
    "no TLS": (["serviceMonitor.enabled=true,serviceMonitor.tlsConfig.serverName=a"], "tlsConfig has no effect"),
    "group": ([CLUSTER, "cluster.groups.root.args={--admin-port=8502}"], "args: --admin-port: set adminPort"),
    "two ingresses": (["ingress.http.enabled=true,ingress.grpc.enabled=true"], "the route / is both that of grpc and of http"),
    "TLS of a cluster": ([CLUSTER, "tls.secret=a"], "tls.secret has no effect with cluster.enabled"),
}


def test_flags_that_the_chart_does_not_set_may_be_given():
    more = "args={--cluster-weight=2},search.enabled=true"
    assert "--cluster-weight=2" in container(one(render("--set", more), "Deployment"))["args"]
    given = flags(one(render("--set", "search.enabled=true,args={--collections-dir=/srv}"), "Deployment"))
    assert given["--collections-dir"] == "/srv"
    # These settings have an effect.
    settings = ["--set", "settings=[search]\n  collections-dir = 'a'"]
    for more in ("search.enabled=true", CLUSTER):
        assert "collections-dir" in one(render("--set", more, *settings), "ConfigMap")["data"]["millpond.toml"]
    file = render("--set", "args={--config=/models/millpond.toml}")
    assert "--config=/models/millpond.toml" in container(one(file, "Deployment"))["args"]
    # The server adds the addresses of a repeated flag.
    more = "--cluster-etcd=http://more.etcd:2379"
    nodes = render("--set", CLUSTER, "--set", f"cluster.groups.root.args={{{more}}}")
    assert more in container(of_group(nodes, "Deployment", "root"))["args"]


@pytest.mark.parametrize("values,words", WRONG_LISTENERS.values(), ids=WRONG_LISTENERS.keys())
def test_wrong_ports_and_certificates_are_refused(values, words):
    assert words in refused(*values)


def test_ingresses_lead_to_the_ports_of_the_service():
    documents = render(*VALUES["ingress"])
    found = {document["metadata"]["name"]: document for document in documents if document["kind"] == "Ingress"}
    for protocol, host in (("http", "models.example.com"), ("grpc", "grpc.models.example.com")):
        spec = found.pop(f"release-millpond-{protocol}")["spec"]
        assert (spec["ingressClassName"], spec["tls"]) == ("nginx", [{"secretName": "models-tls", "hosts": [host]}])
        (rule,) = spec["rules"]
        (path,) = rule["http"]["paths"]
        assert (rule["host"], path["path"], path["pathType"]) == (host, "/", "Prefix")
        backend = {"name": "release-millpond", "port": {"name": protocol}}
        assert path["backend"] == {"service": backend}
    assert not found
    # Without hosts, one Ingress for all hosts. One host may have both if the paths differ.
    (http,) = one(render("--set", "ingress.http.enabled=true"), "Ingress")["spec"]["rules"]
    assert "host" not in http
    both = "ingress.http.enabled=true,ingress.grpc.enabled=true,ingress.grpc.paths={/inference.GRPCInferenceService}"
    assert len([document for document in render("--set", both) if document["kind"] == "Ingress"]) == 2
    assert not [document for document in render() if document["kind"] in ("Ingress", "NetworkPolicy")]


def test_routes_of_a_gateway_lead_to_the_ports_of_the_service():
    parent = "parentRefs[0].name=edge,gateway.{0}.parentRefs[0].namespace=infra"
    on = [f"gateway.{name}.enabled=true,gateway.{name}.{parent.format(name)}" for name in ("http", "grpc")]
    hosts = "gateway.http.hostnames={models.example},gateway.grpc.hostnames={grpc.example}"
    documents = render("--set", ",".join([*on, hosts, "service.grpcPort=80"]))
    for kind, host, port in (("HTTPRoute", "models.example", 8501), ("GRPCRoute", "grpc.example", 80)):
        route = one(documents, kind)
        assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
        assert route["spec"] == {
            "parentRefs": [{"name": "edge", "namespace": "infra"}],
            "hostnames": [host],
            "rules": [{"backendRefs": [{"name": "release-millpond", "port": port}]}],
        }
    # A listener would refuse one of them.
    grpc = "gateway.grpc.hostnames={grpc.example}"
    for overlap in ([], [grpc], [grpc, "gateway.http.hostnames={*.example}"]):
        assert "overlap at one listener" in refused(",".join([*on, *overlap]))
    # Two listeners may have the same host.
    two = [f"gateway.{name}.parentRefs[0].sectionName={name}" for name in ("http", "grpc")]
    routes = [document for document in render("--set", ",".join([*on, *two])) if document["kind"].endswith("Route")]
    assert len(routes) == 2
    assert "needs gateway.grpc.parentRefs" in refused("gateway.grpc.enabled=true")


def test_network_policies_admit_the_named_peers():
    def ports(*values):
        policy = one(render("--set", ",".join(["networkPolicy.enabled=true", *values])), "NetworkPolicy")
        kubernetes_validate.validate(policy, VERSION, strict=True)
        # A rule without peers would admit all.
        assert all(rule["from"] for rule in policy["spec"]["ingress"])
        return [[port["port"] for port in rule["ports"]] for rule in policy["spec"]["ingress"]], policy["spec"]

    found, spec = ports()
    assert (found, spec["policyTypes"]) == ([[8501, 8500]], ["Ingress"])
    assert spec["ingress"][0]["from"] == [{"podSelector": {}}] and "egress" not in spec
    assert ports("adminPort=8502")[0] == [[8501, 8500], [8502]]
    none = "networkPolicy.clients=null,networkPolicy.operators=null"
    assert ports(none)[0] == ports(none, "adminPort=8502")[0] == []
    found, spec = ports(CLUSTER, "networkPolicy.clients=null")
    assert found == [[8501]] and spec["ingress"][0]["from"] == [{"podSelector": spec["podSelector"]}]
    assert ports("networkPolicy.egress[0].to[0].podSelector.matchLabels.a=b")[1]["policyTypes"] == ["Ingress", "Egress"]
