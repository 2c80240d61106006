"""Scenarios with images. Each has a cluster of its own without other collections, and leaves it as it is."""

import collections
import dataclasses
import hashlib
import json
import queue
import statistics
import threading
import time

import graphs
import requests
from cpu_shares import CpuShares
from deployment import SETTLE_TIMEOUT_S, Cluster
from load import Client, Unreachable, kept
from processes import Node, NodePlan, Process, http_call, wait_until
from scenarios import Setting, running

# Modules of tests/clients, which `processes` makes importable.
from test_images import picture

COLLECTION = "images"
COPIES = 2
SHARDS = 8
TIMEOUT_S = 60
POLL_S = 0.05
SEARCH_PATH = f"/v1/images/{COLLECTION}/search"
FEATURES_PATH = f"/v1/images/{COLLECTION}/features"

# Names of nodes that are tried to find one that gets an equal number of shards.
NAMES_MAX = 1000
SEARCHERS = 3
# Shards of the collection that searchers share. Each of 1, 2 or 3 searchers can hold the same number.
SCALED_SHARDS = 6
# Processor time of each searcher, in processors.
SHARE = 0.25
# Clients that each wait for an answer before they send the next query. All searchers have work while they are limited.
CLIENTS = 12
# Candidates of a query whose exact stage costs little.
FEW = 10
PUT_POINTS = 100
WARM_S = 5


@dataclasses.dataclass(frozen=True)
class Arrived:
    """An image that was added, and the time until a search at the root found it."""

    digest: bytes
    put_s: float
    searchable_s: float
    failure: str = ""


def images_extracted(setting: Setting) -> dict:
    """Images are added at three extraction nodes at once. Each is searched at the root until it is found."""
    cluster, lengths = setting.cluster, setting.lengths
    extractors = [cluster.nodes[name].url for name in cluster.of_role("extract")]
    root = cluster.nodes[cluster.of_role("root")[0]].url
    # The first image creates the collection. Its owners and holders come within some seconds.
    new = {"shard_number": SHARDS, "replication_factor": COPIES}
    first = arrive(extractors[0], root, picture(0), new)
    assert not first.failure, first.failure
    cluster.shards, cluster.copies = SHARDS, COPIES
    cluster.wait_settled()
    seeds: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in range(1, lengths.images):
        seeds.put(seed)
    arrived: list[Arrived] = []

    def client(extractor: str) -> None:
        while True:
            try:
                seed = seeds.get_nowait()
            except queue.Empty:
                return
            arrived.append(arrive(extractor, root, picture(seed), {}))

    broken: list[str] = []
    begun = time.monotonic()
    threads = [threading.Thread(target=kept, args=(broken, client, extractor)) for extractor in extractors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun
    stored = originals(cluster)
    failures = broken + [one.failure for one in arrived if one.failure]
    wanted = {one.digest for one in [first, *arrived]}
    times = [one.searchable_s for one in arrived if not one.failure] or [float("inf")]
    return {
        "images": len(arrived),
        "images_per_s": round(len(arrived) / seconds, 1),
        "first_s": round(first.searchable_s, 2),
        "searchable_max_s": round(max(times), 3),
        "searchable_median_s": round(statistics.median(times), 3),
        "put_median_s": round(statistics.median(one.put_s for one in arrived), 3),
        "failed": len(failures),
        "failures": failures[:5],
        "originals_in_store": len(wanted & stored),
        "originals_wanted": lengths.images,
        "originals_missing": lengths.images - len(wanted & stored),
    }


def arrive(extractor: str, root: str, image: bytes, query: dict) -> Arrived:
    """Adds an image at one node, and searches it at another until it is found. Times count from the upload's start."""
    begun = time.monotonic()
    digest = hashlib.sha256(image).digest()

    def failed(why: str) -> Arrived:
        return Arrived(digest, time.monotonic() - begun, float("inf"), why)

    try:
        answer = requests.put(f"{extractor}/v1/images/{COLLECTION}", data=image, params=query, timeout=TIMEOUT_S)
        if answer.status_code != 200 or answer.json()["status"] != "added":
            return failed(f"upload: {answer.status_code} {answer.text[:300]}")
        identity, put_s = answer.json()["id"], time.monotonic() - begun
        while time.monotonic() - begun < TIMEOUT_S:
            answer = requests.post(f"{root}{SEARCH_PATH}", data=image, params={"k": 1}, timeout=TIMEOUT_S)
            # No search finds anything before the root knows the new collection.
            if answer.status_code not in (200, 404, 503) or answer.status_code != 200 and not query:
                return failed(f"search: {answer.status_code} {answer.text[:300]}")
            if answer.status_code == 200 and any(hit["id"] == identity for hit in answer.json()["results"]):
                return Arrived(digest, put_s, time.monotonic() - begun)
            time.sleep(POLL_S)
    except requests.RequestException as error:
        return failed(repr(error))
    return failed(f"not found after {TIMEOUT_S} s")


def originals(cluster: Cluster) -> set[bytes]:
    """Returns the hashes of all original images in the cluster's store, which is a directory."""
    found = (cluster.scratch / "store/data").glob("*/originals/**/*")
    return {hashlib.sha256(path.read_bytes()).digest() for path in found if path.is_file()}


class ClosedLoad:
    """Clients that search images by id, each with one request on its way. Every answer is checked."""

    def __init__(self, address: str, count: int, candidates: int):
        self.address, self.count, self.candidates = address, count, candidates
        self.path = f"{SEARCH_PATH}?candidates={candidates}&k=1"
        self.lock, self.stopped = threading.Lock(), threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        works = [(self.failures, self.run, at) for at in range(CLIENTS)]
        self.threads = [threading.Thread(target=kept, args=work, daemon=True) for work in works]

    def start(self) -> "ClosedLoad":
        for thread in self.threads:
            thread.start()
        return self

    def run(self, at: int) -> None:
        client = Client([self.address])
        while not self.stopped.is_set():
            failure = self.sent(client, at % self.count)
            at += CLIENTS + 1
            with self.lock:
                self.answered += 1
                if failure:
                    self.failures.append(failure)

    def sent(self, client: Client, point: int) -> str:
        """Searches for a point, which must be found. Returns the fault, or nothing."""
        try:
            status, body = client.call("POST", self.path, json.dumps({"id": point}).encode())
        except Unreachable as error:
            return str(error)
        if status != 200:
            return f"status {status}: {body[:300]!r}"
        found = json.loads(body)
        ids = [hit["id"] for hit in found["results"]]
        counts = (found["compared"], found["of"], found["partial"])
        return "" if (ids, counts) == ([point], (self.candidates, self.count, False)) else f"point {point}: {ids} {counts}"

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join()


@dataclasses.dataclass(frozen=True)
class Cost:
    """A span of a closed load: queries, and processor time of groups of processes a query."""

    throughput: float
    cpu_us: dict[str, int]
    # Processors that each process of a group used on average.
    used: dict[str, float]
    failures: list[str]


def measured(load: ClosedLoad, groups: dict[str, list[Process]], seconds: float) -> Cost:
    """Runs a load for some seconds after a warm-up."""
    load.start()
    with running(load):
        time.sleep(min(WARM_S, seconds))
        begun, answered = time.monotonic(), load.answered
        before = {name: sum(one.cpu_s() for one in group) for name, group in groups.items()}
        time.sleep(seconds)
        took, answered = time.monotonic() - begun, load.answered - answered
        spent = {name: sum(one.cpu_s() for one in group) - before[name] for name, group in groups.items()}
    return Cost(
        throughput=round(answered / took, 2),
        cpu_us={name: round(1e6 * cpu / max(answered, 1)) for name, cpu in spent.items()},
        used={name: round(cpu / took / len(groups[name]), 3) for name, cpu in spent.items()},
        failures=load.failures,
    )


def fill_features(node: Node, made: list[dict], **query) -> None:
    for begin in range(0, len(made), PUT_POINTS):
        body = {"points": made[begin : begin + PUT_POINTS]}
        answer = requests.put(f"{node.url}{FEATURES_PATH}", json=body, params=query, timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text[:500]


def name_with_equal_share(cluster: Cluster, number: int) -> str:
    """Returns a name for one more searcher, with which all searchers hold the same number of shards."""
    root = cluster.nodes[cluster.of_role("root")[0]]
    present = cluster.of_role("search")
    equal = SCALED_SHARDS // (len(present) + 1)
    for attempt in range(NAMES_MAX):
        name = f"search-{number}-{attempt}"
        request = json.dumps({"with": [{"name": name, "weight": 1}]}).encode()
        status, body = http_call(root.address, "POST", "/cluster/v1/plan", request)
        assert status == 200, body
        holds = {node["name"]: node["holds"] for node in json.loads(body)["result"]["nodes"]}
        if all(holds[searcher] == equal for searcher in [*present, name]):
            return name
    raise AssertionError(f"no name of {NAMES_MAX} gives each of {number} searchers {equal} shards")


def equal_shares(cluster: Cluster) -> bool:
    """Returns true if each searcher holds the same number of shards, and no shard has two holders."""
    searchers = cluster.of_role("search")
    held = collections.Counter(one.node for one in cluster.members().holdings())
    return dict(held) == dict.fromkeys(searchers, SCALED_SHARDS // len(searchers))


def scaled_out(setting: Setting) -> dict:
    """The same collection on 1, 2 and 3 searchers with the same processor time each. Queries compare many candidates."""
    cluster, lengths = setting.cluster, setting.lengths
    root = cluster.nodes[cluster.of_role("root")[0]]
    made = graphs.points(lengths.graphs)
    fill_features(root, made, model=graphs.MODEL, shard_number=SCALED_SHARDS, replication_factor=1)
    cluster.shards, cluster.copies = SCALED_SHARDS, 1
    costs: dict[int, Cost] = {}
    with CpuShares() as shares:
        for number in range(1, SEARCHERS + 1):
            if number > 1:
                cluster.add(NodePlan(name_with_equal_share(cluster, number), "search"))
            wait_until("all searchers hold the same number of shards", lambda: equal_shares(cluster), SETTLE_TIMEOUT_S)
            cluster.wait_settled(exact=True)
            searchers = [cluster.nodes[name] for name in cluster.of_role("search")]
            for node in searchers:
                shares.limit(node.name, node.pid, SHARE)
            load = ClosedLoad(root.address, len(made), lengths.candidates)
            costs[number] = measured(load, {"root": [root], "searchers": searchers}, lengths.scaled_s)
            shares.lift()
    load = ClosedLoad(root.address, len(made), FEW)
    few = measured(load, {"root": [root], "searchers": searchers}, lengths.scaled_s)
    alone = one_server(setting, made)
    failures = [failure for cost in [*costs.values(), few, *alone.values()] for failure in cost.failures]
    one, last = costs[1], costs[SEARCHERS]
    return {
        "graphs": len(made), "candidates": lengths.candidates, "share": SHARE, "clients": CLIENTS,
        **{f"throughput_{number}": cost.throughput for number, cost in costs.items()},
        **{f"ratio_{number}": round(cost.throughput / (number * one.throughput), 3) for number, cost in costs.items()},
        # Below the share if the machine had other work, or if the root or the clients were the limit.
        **{f"used_{number}": cost.used["searchers"] for number, cost in costs.items()},
        **{f"cpu_us_searchers_{number}": cost.cpu_us["searchers"] for number, cost in costs.items()},
        "cpu_us_root": last.cpu_us["root"],
        "cpu_us_searchers": last.cpu_us["searchers"],
        "cpu_us_one_server": alone[lengths.candidates].cpu_us["server"],
        # For queries that compare few candidates, the hops are most of the cost.
        "few_cpu_us_root": few.cpu_us["root"],
        "few_cpu_us_searchers": few.cpu_us["searchers"],
        "few_cpu_us_one_server": alone[FEW].cpu_us["server"],
        "failed": len(failures),
        "failures": failures[:5],
    }  # fmt: skip


def one_server(setting: Setting, made: list[dict]) -> dict[int, Cost]:
    """Returns the costs of queries on one ordinary server without a limit, by their candidates."""
    ordinary = setting.cluster.ordinary()
    ordinary.start()
    ordinary.wait_ready()
    fill_features(ordinary, made, model=graphs.MODEL)
    found = {}
    for candidates in (setting.lengths.candidates, FEW):
        load = ClosedLoad(ordinary.address, len(made), candidates)
        found[candidates] = measured(load, {"server": [ordinary]}, setting.lengths.scaled_s)
    ordinary.kill()
    return found
