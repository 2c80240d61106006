"""A cluster with its etcd, its store and its nodes, and the state that etcd shows."""

import collections
import dataclasses
import http.client
import json
import pathlib
import time

from processes import STARTED, Controlled, Etcd, Node, NodePlan, Proxy, http_call, wait_until

CLUSTER = "millpond"
SETTLE_TIMEOUT_S = 90
# Time between two reads of the state.
SETTLE_POLL_S = 0.2
FULL = [
    NodePlan("root-1", "root"),
    NodePlan("search-1", "search"),
    NodePlan("search-2", "search"),
    NodePlan("search-3", "search"),
    NodePlan("ingest-1", "root,ingest"),
    NodePlan("ingest-2", "root,ingest"),
]
EXTRACTING = [
    NodePlan("root-1", "root"),
    NodePlan("extract-1", "extract"),
    NodePlan("extract-2", "extract"),
    NodePlan("extract-3", "extract"),
    NodePlan("node-1", "search,ingest"),
    NodePlan("node-2", "search,ingest"),
]
# Scenarios add searchers.
SCALED = [NodePlan("root-1", "root,ingest"), NodePlan("search-1", "search")]
SMALL = [NodePlan(f"node-{number}", "root,search,ingest") for number in (1, 2, 3)]


@dataclasses.dataclass(frozen=True)
class Holding:
    """A copy of a shard that a node serves."""

    collection: str
    shard: int
    node: str


@dataclasses.dataclass
class Members:
    """Nodes, owners of shards and held copies, as etcd has them."""

    nodes: dict[str, dict]
    owners: dict[tuple[str, int], str]

    def holdings(self) -> set[Holding]:
        return {
            Holding(collection, shard, name)
            for name, node in self.nodes.items()
            for collection, shards in node.get("serving", {}).items()
            for shard in shards
        }


class Cluster:
    """Processes of one cluster. The store is a directory, or `s3`: moto behind a proxy with faults."""

    def __init__(self, plans: list[NodePlan], scratch: pathlib.Path, logs: pathlib.Path, s3: bool, snapshot_entries: int = 4096):
        logs.mkdir(parents=True, exist_ok=True)
        self.scratch, self.logs = scratch, logs
        self.etcd = Etcd(scratch, logs)
        self.environment: dict[str, str] = {}
        self.store_proxy: Proxy | None = None
        store_url = str(scratch / "store")
        if s3:
            store_url = self.start_s3()
        else:
            (scratch / "store").mkdir()
        self.etcd.start()
        self.flags = [
            "--cluster-store", store_url, "--cluster-etcd", self.etcd.url, "--cluster-name", CLUSTER,
        ]  # fmt: skip
        self.search_flags = ["--cluster-snapshot-entries", str(snapshot_entries)]
        self.nodes = {plan.name: self.node(plan) for plan in plans}
        # Shards and copies of the collections that scenarios have created.
        self.shards, self.copies = 0, 0

    def start_s3(self) -> str:
        """Starts moto and its proxy. Returns the URL of the store."""
        moto = Controlled("moto", "object_store.py", [], self.logs)
        moto.start()
        self.environment = dict(moto.ready)
        bucket = self.environment.pop("BUCKET")
        target = self.environment["AWS_ENDPOINT_URL"].removeprefix("http://")
        self.store_proxy = Proxy("faults", "store-proxy", target, self.logs)
        self.store_proxy.start()
        self.environment["AWS_ENDPOINT_URL"] = f"http://{self.store_proxy.address}"
        return f"s3://{bucket}/cluster"

    def node(self, plan: NodePlan) -> Node:
        flags = self.flags + (self.search_flags if plan.has("search") else [])
        return Node(plan, flags, self.scratch, self.logs, self.environment)

    def ordinary(self) -> Node:
        """Returns an ordinary server of the same program, not started."""
        return Node(NodePlan("ordinary", ""), [], self.scratch, self.logs, {})

    def start(self) -> None:
        self.etcd.wait_ready()
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            node.wait_ready()
        self.wait_registered()

    def add(self, plan: NodePlan) -> Node:
        """Starts one more node."""
        self.nodes[plan.name] = self.node(plan)
        self.nodes[plan.name].start()
        self.nodes[plan.name].wait_ready()
        return self.nodes[plan.name]

    def restart(self, name: str) -> None:
        """Starts a node again that has ended. Waits until it has a new entry in etcd."""
        before = self.leases().get(name)
        self.nodes[name].start()
        self.nodes[name].wait_ready()
        wait_until(f"a new entry of {name} in etcd", lambda: self.leases().get(name) not in (None, before))

    def of_role(self, role: str) -> list[str]:
        return [name for name, node in self.nodes.items() if node.plan.has(role)]

    def roots(self, *without: str) -> list[str]:
        """Returns the addresses of the nodes that clients may use."""
        return [self.nodes[name].address for name in self.of_role("root") if name not in without]

    def registered(self) -> dict[str, tuple[dict, str]]:
        return self.etcd.range(f"millpond/{CLUSTER}/nodes/")

    def leases(self) -> dict[str, str]:
        """Returns the lease of each node's entry in etcd."""
        return {name: lease for name, (_, lease) in self.registered().items()}

    def members(self) -> Members:
        nodes = {name: node for name, (node, _) in self.registered().items()}
        owners = {}
        for key, (value, _) in self.etcd.range(f"millpond/{CLUSTER}/owners/").items():
            collection, shard = key.rsplit("/", 1)
            owners[collection, int(shard)] = value["node"]
        return Members(nodes, owners)

    def wait_registered(self) -> None:
        running = {name for name, node in self.nodes.items() if node.running()}
        wait_until(f"nodes {sorted(running)} in etcd", lambda: set(self.members().nodes) == running)

    def unsettled(self, exact: bool) -> str | None:
        """Returns why the cluster still moves shards or owners, or `None` if all are in place.

        A node keeps a copy that is no longer wanted for some time. With `exact`, such copies count as movement.
        """
        members = self.members()
        running = {name for name, node in self.nodes.items() if node.running()}
        if set(members.nodes) != running:
            return f"nodes in etcd: {sorted(members.nodes)}, running: {sorted(running)}"
        owned = sum(name in running for name in members.owners.values())
        if owned != self.shards or len(members.owners) != self.shards:
            return f"{owned} of {self.shards} shards have an owner that runs; {len(members.owners)} keys of owners"
        copies = min(self.copies, len([name for name in self.of_role("search") if name in running]))
        held = collections.Counter((one.collection, one.shard) for one in members.holdings())
        wrong = {shard: count for shard, count in held.items() if count < copies or exact and count > copies}
        if len(held) != self.shards or wrong:
            return f"{len(held)} of {self.shards} shards are held; not by {copies} nodes: {wrong}"
        return None

    def wait_settled(self, exact: bool = False, timeout_s: float = SETTLE_TIMEOUT_S) -> float:
        """Waits until every shard has its owner and its holders, and the roots know it. Returns the seconds."""
        begun, why = time.monotonic(), "not looked"
        while (why := self.unsettled(exact)) is not None:
            assert time.monotonic() - begun < timeout_s, f"the cluster is not settled after {timeout_s} s: {why}"
            time.sleep(SETTLE_POLL_S)
        seconds = time.monotonic() - begun
        for name in self.of_role("root"):
            if self.nodes[name].running():
                wait_until(f"{name} sees the settled cluster", lambda node=self.nodes[name]: self.is_seen_by(node), timeout_s)
        return seconds

    def observe(self, seconds: float) -> None:
        """Reads the state for some time, as often as `wait_settled`.

        These reads delay clients, which are threads of this process, so both sides of a comparison need them.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.unsettled(exact=True)
            time.sleep(SETTLE_POLL_S)

    def is_seen_by(self, root: Node) -> bool:
        """Returns true if the view of a root has the nodes, the owners and the holders that etcd has."""
        # The entry of an ended process stays in etcd for some time, so its successor may not listen yet.
        try:
            status, body = http_call(root.address, "GET", "/cluster/v1/view")
        except (OSError, http.client.HTTPException):
            return False
        # A node that was paused may answer before it has joined again.
        if status != 200:
            return False
        view, members = json.loads(body)["result"], self.members()
        shards = [(kept["id"], shard) for kept in view["collections"] for shard in kept["shards"]]
        owners = {(own, shard["shard"]): shard["owner"] for own, shard in shards if "owner" in shard}
        held = {Holding(own, shard["shard"], name) for own, shard in shards for name in shard["serving"]}
        nodes = {node["name"] for node in view["nodes"]}
        seen = (nodes, owners, held) == (set(members.nodes), members.owners, members.holdings())
        return seen and "stale" not in view

    def owner_with_most(self, role: str = "ingest") -> str:
        """Returns the node that owns the most shards."""
        owners = collections.Counter(self.members().owners.values())
        assert owners, "no shard has an owner"
        return max((name for name in owners if self.nodes[name].plan.has(role)), key=lambda name: owners[name])

    def holder_with_most(self) -> str:
        """Returns the node that holds the most copies of shards."""
        held = collections.Counter(one.node for one in self.members().holdings())
        assert held, "no node holds a shard"
        return max(held, key=lambda name: held[name])

    def requests(self) -> collections.Counter:
        """Returns the requests that all roots have sent to nodes, by their kind."""
        total = collections.Counter()
        for name in self.of_role("root"):
            if self.nodes[name].running():
                total.update(self.nodes[name].requests())
        return total

    def rss_mb(self) -> float:
        """Returns the resident memory of the largest node in MiB."""
        return max(node.rss_mb() for node in self.nodes.values())

    def view(self) -> str:
        """Returns the view that the first answering root has of the cluster, for a report of a failure."""
        for address in self.roots():
            try:
                status, body = http_call(address, "GET", "/cluster/v1/view")
                return f"{address} {status}: {json.dumps(json.loads(body))[:4000]}"
            except (OSError, ValueError) as error:
                last = f"{address}: {error}"
        return last

    def logs_text(self) -> str:
        """Returns the ends of the logs of all nodes."""
        return "\n".join(node.log_tail() for node in self.nodes.values())

    def close(self) -> None:
        """Ends all processes of the cluster."""
        for process in list(STARTED):
            process.kill()
        STARTED.clear()
