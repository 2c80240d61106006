"""Scenarios: each gets a settled cluster with points, disturbs it under load, and returns figures.

A scenario leaves all of its processes running, so that the next one may use the same cluster. `simulated` has no
processes: it runs the decisions of a cluster in simulated time.
"""

import collections
import contextlib
import dataclasses
import json
import random
import subprocess
import time

from deployment import Cluster
from history import History, Operation, lost, violations
from load import Batches, Client, QueryLoad, Registers, Window
from points import COLLECTION, Points
from processes import REPOSITORY, Node, NodePlan, wait_until
from qdrant_client import QdrantClient, models

LIMIT = 10
# The simulations of the crate `cluster`, which `make cluster-test` builds.
SIMULATE = REPOSITORY / "target/release/examples/simulate"
SIMULATED_SEEDS = 10_000
SIMULATE_TIMEOUT_S = 1800


@dataclasses.dataclass
class Lengths:
    """Rates and times of one form of the run. Times in seconds."""

    rate: float
    steady_s: float
    after_s: float
    paused_s: float
    etcd_down_s: float
    slow_store_s: float
    back_max_s: float = 30
    equal_queries: int = 200
    # Images that are added at extraction nodes.
    images: int = 300
    # Made-up images that searchers share, and those that a query compares.
    graphs: int = 1000
    candidates: int = 400
    scaled_s: float = 40


FULL = Lengths(rate=200, steady_s=15, after_s=15, paused_s=30, etcd_down_s=60, slow_store_s=30)
SMOKE = Lengths(rate=20, steady_s=2, after_s=3, paused_s=13, etcd_down_s=13, slow_store_s=10, equal_queries=100,
                images=15, graphs=240, candidates=120, scaled_s=6)  # fmt: skip


@dataclasses.dataclass
class Setting:
    """A cluster with points, and what all scenarios have recorded."""

    cluster: Cluster
    points: Points
    lengths: Lengths
    # Histories of registers, by the name of the scenario.
    histories: dict[str, list[Operation]]


def ratio(after: Window, steady: Window) -> float:
    return round(after.p99_ms / max(steady.p99_ms, 1e-3), 2)


@contextlib.contextmanager
def running(*loads):
    """Stops loads at the end, also after a failure."""
    try:
        yield
    finally:
        for load in loads:
            load.stop()


def steady_and_after(load: QueryLoad, begun: float, event: float, end: float = float("inf")) -> dict:
    """Returns figures of all queries, and the 99th percentiles before and after an event."""
    steady, after, whole = load.window(begun, event), load.window(event, end), load.window(begun, end)
    return whole.counts() | {
        "steady_p50_ms": steady.p50_ms,
        "steady_p99_ms": steady.p99_ms,
        "p50_ms": after.p50_ms,
        "p99_ms": after.p99_ms,
        "p99_ratio": ratio(after, steady),
        "reasons": whole.reasons,
    }


def queries(setting: Setting, *without: str) -> QueryLoad:
    """Returns a load of queries that uses all roots but those on the nodes `without`. Sends each query once before."""
    roots = setting.cluster.roots(*without)
    load = QueryLoad(setting.points, roots, setting.lengths.rate)
    for at in range(min(50, len(setting.points.bodies))):
        Client(roots, at).call("POST", f"/collections/{COLLECTION}/points/query", setting.points.bodies[at])
    load.begun = load.due = time.monotonic()
    return load


def judged(setting: Setting, name: str, registers: Registers, batches: Batches | None = None) -> dict:
    """Reads all points and checks the history. Returns `lost` and `linearizable`. Fails if a client ended early."""
    if broken := registers.broken + (batches.broken if batches else []):
        raise AssertionError(f"{len(broken)} clients ended early, for example: {broken[0]}")
    roots = setting.cluster.roots()
    last = registers.last_values(roots)
    operations = registers.history.taken()
    setting.histories[name] = operations
    broken = violations(operations)
    missing = lost(operations, last) + (batches.missing(roots) if batches else [])
    return {
        "lost": len(missing),
        "lost_points": missing[:10],
        "linearizable": not broken,
        "violations": broken[:10],
        "operations": len(operations),
        "acknowledged": sum(one.acknowledged for one in operations) + (len(batches.acknowledged) if batches else 0),
        "refused_writes": len(registers.refused) + (batches.refused if batches else 0),
        "refusals": registers.refused[:3],
    }


def searcher_killed(setting: Setting) -> dict:
    """A node that holds shards is killed by signal 9 under queries."""
    cluster, lengths = setting.cluster, setting.lengths
    victim = cluster.holder_with_most()
    load = queries(setting, victim)
    load.start()
    with running(load):
        time.sleep(lengths.steady_s)
        event = time.monotonic()
        cluster.nodes[victim].kill()
        time.sleep(lengths.after_s)
    figures = steady_and_after(load, load.begun, event)
    cluster.restart(victim)
    return figures | {"victim": victim, "settled_s": round(cluster.wait_settled(), 1)}


def writer_killed(setting: Setting) -> dict:
    """The owner of most shards is killed by signal 9 under writes."""
    return killed_under_writes(setting, "writer_killed")


def node_killed(setting: Setting) -> dict:
    """A node of all roles is killed by signal 9 under queries and writes: `searcher_killed` and `writer_killed` in one."""
    cluster = setting.cluster
    load = queries(setting, cluster.owner_with_most())
    load.start()
    with running(load):
        figures = killed_under_writes(setting, "node_killed")
    return load.window().counts() | {"reasons": load.window().reasons} | figures


def killed_under_writes(setting: Setting, name: str) -> dict:
    cluster, lengths = setting.cluster, setting.lengths
    victim = cluster.owner_with_most()
    roots = cluster.roots(victim)
    registers, batches = Registers(setting.points, History(), writers=12, own=3), Batches(setting.points)
    registers.start(roots)
    batches.start(roots)
    with running(registers, batches):
        time.sleep(lengths.steady_s)
        killed_ns = time.monotonic_ns()
        cluster.nodes[victim].kill()
        deadline = time.monotonic() + lengths.back_max_s
        while (back_s := registers.back_s(killed_ns)) == float("inf") and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(1)
    figures = judged(setting, name, registers, batches)
    cluster.restart(victim)
    cluster.wait_settled()
    return figures | {"victim": victim, "back_s": round(min(back_s, 1e6), 2)}


def writer_paused(setting: Setting) -> dict:
    """The owner of most shards is stopped by SIGSTOP for longer than its lease, then continued.

    Half of the writers send to the root of the paused node, if it is one. Their requests wait in its sockets and are
    the first ones that it carries out when it continues.
    """
    cluster, lengths = setting.cluster, setting.lengths
    victim = cluster.owner_with_most()
    node = cluster.nodes[victim]
    registers, batches = Registers(setting.points, History(), writers=12, own=3), Batches(setting.points)
    lone_root = node.address if node.plan.has("root") else None
    registers.start(cluster.roots(victim), timeout_s=lengths.paused_s + 30, lone_root=lone_root)
    batches.start(cluster.roots(victim))
    with running(registers, batches):
        time.sleep(lengths.steady_s)
        paused_ns = time.monotonic_ns()
        node.pause()
        try:
            time.sleep(lengths.paused_s)
            # On a busy machine, etcd may notice the end of the lease later.
            deadline = time.monotonic() + lengths.back_max_s
            while victim in (owners := set(cluster.members().owners.values())) and time.monotonic() < deadline:
                time.sleep(0.2)
        finally:
            continued_ns = time.monotonic_ns()
            node.resume()
        time.sleep(lengths.after_s)
    assert node.running(), f"{victim} ended\n{node.log_tail()}"
    cluster.wait_settled()
    figures = judged(setting, "writer_paused", registers, batches)
    moved = sum(one.acknowledged and paused_ns < one.begun and one.ended < continued_ns for one in registers.history.taken())
    return figures | {"victim": victim, "owner_while_paused": victim in owners, "acknowledged_while_paused": moved}


def node_added(setting: Setting) -> dict:
    """One more search node starts under queries."""
    cluster, lengths = setting.cluster, setting.lengths
    load = queries(setting)
    load.start()
    with running(load):
        cluster.wait_settled(exact=True)
        begun = time.monotonic()
        cluster.observe(lengths.steady_s)
        before = cluster.members().holdings()
        event = time.monotonic()
        cluster.add(NodePlan("added-1", "search"))
        wait_until("the new node holds a shard", lambda: any(one.node == "added-1" for one in cluster.members().holdings()))
        settled_s = cluster.wait_settled(exact=True)
        settled = time.monotonic()
        cluster.observe(lengths.after_s)
    moved = cluster.members().holdings() - before
    fair = cluster.copies * cluster.shards / len(cluster.of_role("search"))
    return steady_and_after(load, begun, event) | {
        "moved_share": round(len(moved) / fair, 3),
        "moved": len(moved),
        "fair": fair,
        "moved_between_others": sum(one.node != "added-1" for one in moved),
        "settled_s": round(settled_s, 1),
        "p99_ratio_later": ratio(load.window(settled), load.window(begun, event)),
    }


def etcd_down(setting: Setting) -> dict:
    """etcd is stopped by SIGSTOP and continued. Queries and writes continue."""
    cluster, lengths = setting.cluster, setting.lengths
    load, registers = queries(setting), Registers(setting.points, History(), writers=4, readers=2)
    load.start()
    registers.start(cluster.roots())
    with running(load, registers):
        time.sleep(lengths.steady_s)
        event = time.monotonic()
        stopped_ns = time.monotonic_ns()
        cluster.etcd.pause()
        try:
            time.sleep(lengths.etcd_down_s)
        finally:
            continued_ns = time.monotonic_ns()
            cluster.etcd.resume()
        # The leases have ended meanwhile: nodes register again.
        time.sleep(2 * lengths.after_s)
    figures = steady_and_after(load, load.begun, event)
    cluster.etcd.wait_ready()
    cluster.wait_settled()
    written = sum(one.acknowledged and stopped_ns < one.begun and one.ended < continued_ns for one in registers.history.taken())
    return figures | judged(setting, "etcd_down", registers) | {"acknowledged_while_down": written}


def store_slow(setting: Setting) -> dict:
    """Every request to the store takes 500 ms longer. 10 % of them get 503, half of these after they took effect."""
    cluster, lengths = setting.cluster, setting.lengths
    assert cluster.store_proxy is not None
    load = queries(setting)
    registers, batches = Registers(setting.points, History(), writers=8, readers=2), Batches(setting.points, pause_s=0.05)
    load.start()
    registers.start(cluster.roots())
    batches.start(cluster.roots())
    with running(load, registers, batches):
        time.sleep(lengths.steady_s)
        event, steady_mb, most_mb = time.monotonic(), cluster.rss_mb(), 0.0
        acknowledged = len(batches.acknowledged)
        cluster.store_proxy.set(delay_ms=500, error_share=0.1)
        while time.monotonic() < event + lengths.slow_store_s:
            most_mb = max(most_mb, cluster.rss_mb())
            time.sleep(0.5)
        acknowledged = len(batches.acknowledged) - acknowledged
    figures = steady_and_after(load, load.begun, event)
    cluster.store_proxy.set(delay_ms=0, error_share=0)
    cluster.wait_settled()
    return figures | judged(setting, "store_slow", registers, batches) | {
        "steady_rss_mb": round(steady_mb),
        "growth_mb": round(most_mb - steady_mb),
        "acknowledged_while_slow": acknowledged,
    }


def rolling_restart(setting: Setting) -> dict:
    """Each node is ended by SIGTERM and started again, one after another, under queries and writes."""
    return restart_each(setting, "rolling_restart")


def rolling_upgrade(setting: Setting) -> dict:
    """As `rolling_restart`, but the nodes run an earlier program before, and the program under test after it."""
    return restart_each(setting, "rolling_upgrade")


def restart_each(setting: Setting, scenario: str) -> dict:
    cluster, lengths = setting.cluster, setting.lengths
    load, registers = queries(setting), Registers(setting.points, History(), writers=4, readers=2)
    load.start()
    registers.start(cluster.roots())
    statuses, restarts = {}, []
    with running(load, registers):
        time.sleep(lengths.steady_s)
        event = time.monotonic()
        for name, node in cluster.nodes.items():
            begun = time.monotonic()
            statuses[name] = node.terminate()
            node.upgrade()
            cluster.restart(name)
            cluster.wait_settled()
            restarts.append(round(time.monotonic() - begun, 1))
        time.sleep(1)
    figures = steady_and_after(load, load.begun, event) | judged(setting, scenario, registers)
    bad = {name: status for name, status in statuses.items() if status != 0}
    return figures | {"failed_writes": len(registers.refused), "restart_s": restarts, "exit_statuses": bad}


def slow_node(setting: Setting) -> dict:
    """Requests of the other nodes to one node take 200 ms longer, by a proxy in front of its address."""
    cluster, lengths = setting.cluster, setting.lengths
    slowed = next(node for node in cluster.nodes.values() if node.proxy)
    load = queries(setting, slowed.name)
    load.start()
    with running(load):
        time.sleep(lengths.steady_s)
        event, before = time.monotonic(), cluster.requests()
        slowed.proxy.set(delay_ms=200)
        time.sleep(lengths.after_s)
        slow_end, sent = time.monotonic(), cluster.requests() - before
    slowed.proxy.set(delay_ms=0)
    # Roots save second requests in quiet times, so the limit holds from their start.
    total = cluster.requests()
    figures = steady_and_after(load, load.begun, event, slow_end)
    return figures | {"hedged_percent": percent(total), "hedged_percent_while_slow": percent(sent), "requests_to_nodes": sent}


def simulated() -> dict:
    """Many worlds in simulated time, with faults from seeds, and worlds with planted mistakes."""
    command = [str(SIMULATE), "--seeds", str(SIMULATED_SEEDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SIMULATE_TIMEOUT_S, check=False)
    # 1 if figures are wrong, which the wanted values show.
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{SIMULATE.name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout) | {"notes": done.stderr.splitlines()[-20:]}


def percent(sent: collections.Counter) -> float:
    """Returns second requests as a percentage of first ones."""
    return round(100 * sent["hedged"] / max(sent["first"], 1), 2)


def asked(points: Points, rng: random.Random, number: int) -> dict:
    """Returns arguments of `query_points`: plain, filtered, with an offset, or by the id of a point."""
    colour = models.FieldCondition(key="colour", match=models.MatchValue(value=rng.choice(["red", "blue"])))
    low = rng.randrange(len(points.vectors) // 2)
    several = models.FieldCondition(key="n", range=models.Range(gte=low, lt=low + len(points.vectors) // 3))
    plain = {"query": points.queries[number % len(points.queries)].tolist(), "limit": LIMIT}
    arguments = [
        plain,
        plain | {"query_filter": models.Filter(must=[colour])},
        plain | {"query_filter": models.Filter(must=[several], must_not=[colour]), "limit": 2 * LIMIT},
        plain | {"offset": rng.randrange(1, 30), "with_payload": True},
        plain | {"query": rng.randrange(len(points.vectors)), "with_vectors": True},
    ][number % 5]
    return arguments | {"search_params": models.SearchParams(exact=True)}


def answered(client: QdrantClient, arguments: dict) -> list[tuple]:
    found = client.query_points(COLLECTION, **arguments).points
    return [(point.id, point.score, point.payload, point.vector) for point in found]


def equal_answers(setting: Setting) -> dict:
    """Queries, counts and pages of the cluster's roots equal those of one ordinary server with the same points."""
    cluster, points, rng = setting.cluster, setting.points, random.Random(8)
    ordinary = cluster.ordinary()
    ordinary.start()
    ordinary.wait_ready()
    different = []
    with contextlib.ExitStack() as stack:
        stack.callback(ordinary.kill)
        single = fill(ordinary, points, cluster.shards, cluster.copies)
        stack.callback(single.close)
        roots = [QdrantClient(url=f"http://{root}", check_compatibility=False, timeout=30) for root in cluster.roots()]
        for root in roots:
            stack.callback(root.close)
        for number in range(setting.lengths.equal_queries):
            arguments = asked(points, rng, number)
            mine, theirs = answered(roots[number % len(roots)], arguments), answered(single, arguments)
            if mine != theirs:
                shown = {key: value for key, value in arguments.items() if key != "query"}
                different.append(f"query {number} {shown}: {mine[:3]} and {theirs[:3]}"[:800])
        different += pages_differ(roots, single, len(points.vectors))
    return {"queries": setting.lengths.equal_queries, "different": len(different), "differences": different[:5]}


def pages_differ(roots: list[QdrantClient], single: QdrantClient, last: int) -> list[str]:
    """Compares counts and some pages of points, without those that other scenarios wrote."""
    ours = models.Filter(must=[models.FieldCondition(key="n", range=models.Range(gte=0))])
    different = []
    for root in roots:
        counts = [client.count(COLLECTION, count_filter=ours).count for client in (root, single)]
        if counts[0] != counts[1]:
            different.append(f"counts {counts}")
        for offset in range(0, last, last // 4):
            settings = {"scroll_filter": ours, "offset": offset, "limit": 50, "with_vectors": True}
            mine, theirs = (client.scroll(COLLECTION, **settings) for client in (root, single))
            if mine != theirs:
                ids = [[point.id for point in page[0]][:5] for page in (mine, theirs)]
                different.append(f"page from {offset}: {ids}, next {mine[1]} and {theirs[1]}")
    return different


def fill(node: Node, points: Points, shards: int, copies: int, batch: int = 500) -> QdrantClient:
    """Creates the collection and upserts all fixed points with qdrant-client. Returns the client."""
    client = QdrantClient(url=node.url, check_compatibility=False, timeout=60)
    vectors = models.VectorParams(size=points.dims, distance=models.Distance.EUCLID)
    client.create_collection(COLLECTION, vectors_config=vectors, shard_number=shards, replication_factor=copies)
    for begin in range(0, len(points.vectors), batch):
        ids = list(range(begin, min(begin + batch, len(points.vectors))))
        chosen = models.Batch(ids=ids, vectors=points.vectors[ids].tolist(), payloads=[points.payloads[at] for at in ids])
        client.upsert(COLLECTION, chosen, wait=True)
    return client
