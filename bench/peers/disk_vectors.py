"""Measures one vector engine with its index on disk and limited memory, for `millpond bench vectors --memory`.

    disk_vectors.py --data DIR --engine NAME --memory BYTES --json OUT [--work DIR] [--threads T]
                    [--search-threads T,..] [--build-limit S] [--group DIR] [--end-with-parent]
    disk_vectors.py --list

DIR holds base.fbin, query.fbin (u32 rows, u32 dimensions, then f32) and truth.ibin (u32 queries, u32 hits, then u32). The
rows are read in batches, so they are never all in memory.

One process builds the index and is then killed. Further processes, one for each number of search threads, open the index.
Each is bound to as many cores as it has threads. The memory of every process is limited by a control group if the system
has version 2 at /sys/fs/cgroup, or if --group names one (version 1 or 2) below which groups may be made. Otherwise
RLIMIT_DATA limits private memory that was reserved after the imports, and the page cache is not limited. `limited_by` in
the result says which. The index is removed from the page cache before it is opened.

The first number of threads selects the search setting: the fastest with a recall@10 of at least 0.95, or the one with the
best recall if none reaches that. `ready_s` is the time from opening the index to the first answer, without imports.

SIGINT, SIGTERM and SIGHUP end the measurement; the index and the control group are removed. With --end-with-parent, the end
of the process that started this one does the same.

An engine that is not installed gives one line on stderr and exit status 3, an engine that fails the reason and status 1.
"""

import argparse
import collections
import contextlib
import ctypes
import importlib.metadata
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time

from vectors import MISSING, power_of_two_near

K = 10
RECALL_WANTED = 0.95
# A sweep of a variant ends if two further settings gain less than this.
RECALL_STEP = 0.001
# Rounds over the queries: of a setting in the sweep, whose first is not timed; repeats of the chosen setting.
SWEEP_ROUNDS = 2
REPEATS = 3
# The queries are not repeated any more after this time.
ROUNDS_SECONDS_MAX = 120
# Maximum time of one search process.
SEARCH_SECONDS_MAX = 3600
# Rows that are read at once.
BATCH = 20_000
# Maximum characters of a reason.
REASON_MAX = 500
# Stack of a thread if RLIMIT_DATA counts it.
STACK_BYTES = 2 << 20
# Characters of a process's output that are repeated.
LOG_MAX = 4000
# Time in which a process ends after it has closed the pipe without a report.
EXIT_SECONDS_MAX = 60
# Time for the kernel to empty the group of a killed process.
GROUP_EMPTY_SECONDS_MAX = 10
GROUPS = "/sys/fs/cgroup"
PR_SET_PDEATHSIG = 1
# Signals that end the measurement.
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Rows:
    """Rows of a file, read in batches."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            self.count, self.dims = (int.from_bytes(file.read(4), "little") for _ in range(2))
        if os.path.getsize(path) != 8 + 4 * self.count * self.dims:
            sys.exit(f"{path} is not a file of {self.count} rows of {self.dims} dimensions")

    def read(self, start, count, kind="<f4"):
        import numpy as np

        count = min(count, self.count - start)
        values = np.fromfile(self.path, kind, count * self.dims, offset=8 + 4 * start * self.dims)
        return values.reshape(count, self.dims)

    def batches(self, size=BATCH):
        """Yields the first row and the vectors of each batch."""
        for start in range(0, self.count, size):
            yield start, self.read(start, size)


# An engine has two functions. `build(rows, directory, arguments)` writes the index and returns its description.
# `load(directory, rows, arguments)` opens it and returns variants: a name, settings from fast to exact, and `search`:
# `search(setting)` gives a function from one query to its ten ids. `rows` of `load` has number and dimensions only.


def faiss_lists(rows):
    return power_of_two_near(3 * rows.count**0.5)


def build_faiss(rows, directory, arguments):
    import faiss
    import numpy as np

    lists = faiss_lists(rows)
    faiss.omp_set_num_threads(arguments.threads)
    index = faiss.index_factory(rows.dims, f"IVF{lists},Flat")
    # Rows are in random order. faiss wants at least 39 for each list; more if they fit into an eighth of the memory.
    sample = min(rows.count, 100 * lists, max(39 * lists, arguments.memory // 8 // (4 * rows.dims)))
    index.train(rows.read(0, sample))
    assigned = np.empty(rows.count, np.int32)
    for start, vectors in rows.batches():
        assigned[start : start + len(vectors)] = index.quantizer.assign(vectors, 1)[:, 0]
    # With known sizes no list is moved when it grows.
    sizes = np.bincount(assigned, minlength=lists)
    inverted = faiss.OnDiskInvertedLists(lists, index.code_size, os.path.join(directory, "lists"))
    for number, size in enumerate(sizes):
        inverted.resize(number, int(size))
    filled = np.zeros(lists, np.int64)
    # Large batches write each list in longer pieces.
    for start, vectors in rows.batches(max(BATCH, arguments.memory // 8 // (4 * rows.dims))):
        numbers = assigned[start : start + len(vectors)]
        order = np.argsort(numbers, kind="stable")
        vectors, ids, numbers = vectors[order], start + order.astype(np.int64), numbers[order]
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for first, end in zip(firsts, [*firsts[1:], len(numbers)]):
            number, codes = int(numbers[first]), vectors[first:end].view(np.uint8)
            places = int(filled[number]), int(end - first)
            inverted.update_entries(number, *places, faiss.swig_ptr(ids[first:end]), faiss.swig_ptr(codes))
            filled[number] += end - first
    index.replace_invlists(inverted, False)
    index.ntotal = rows.count
    faiss.write_index(index, os.path.join(directory, "index"))
    return f"IVF{lists},Flat, lists on disk"


def load_faiss(directory, rows, arguments):
    import faiss

    faiss.omp_set_num_threads(arguments.threads)
    index = faiss.read_index(os.path.join(directory, "index"))
    # One query is divided by lists.
    index.parallel_mode = 1 if arguments.threads > 1 else 0

    def search(setting):
        index.nprobe = setting
        return lambda query: index.search(query[None], K)[1][0]

    probes = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    return [("probes", [probe for probe in probes if probe <= index.nlist], search)]


def qdrant_segment_rows(arguments):
    """Returns the rows of a segment whose graph fits into a quarter of the memory while it is built."""
    return max(100_000, arguments.memory // 4 // 256)


def qdrant_config(library, rows, arguments):
    cold = library.Memory.Cold
    graph = library.HnswIndexConfig(
        m=16, ef_construct=100, full_scan_threshold=1000, max_indexing_threads=arguments.threads, memory=cold
    )
    return library.EdgeConfig(
        vectors=library.EdgeVectorParams(
            size=rows.dims, distance=library.Distance.Euclid, hnsw_config=graph, memory=cold
        ),
        hnsw_config=graph,
        optimizers=library.EdgeOptimizersConfig(
            default_segment_number=-(-rows.count // qdrant_segment_rows(arguments)),
            indexing_threshold=1000,
            max_segment_size=100_000_000,
        ),
        max_search_threads=arguments.threads,
        # Its rows are on the medium once `flush` returns.
        wal_enabled=False,
    )


def build_qdrant(rows, directory, arguments):
    import qdrant_edge as library

    segment_rows = qdrant_segment_rows(arguments)
    shard = library.EdgeShard.create(directory, qdrant_config(library, rows, arguments))
    unindexed = 0
    # Its input is lists of numbers, 32 bytes for each number.
    for start, batch in rows.batches(2000):
        points = [library.Point(start + at, row, {}) for at, row in enumerate(batch.tolist())]
        shard.update(library.UpdateOperation.upsert_points(points))
        unindexed += len(batch)
        if unindexed >= segment_rows:
            shard.optimize()
            unindexed = 0
    shard.optimize()
    shard.flush()
    return f"HNSW links 16, ef 100, {shard.info().segments_count} segments, vectors and graphs on disk"


def load_qdrant(directory, rows, arguments):
    import qdrant_edge as library

    shard = library.EdgeShard.load(directory, qdrant_config(library, rows, arguments))

    def search(setting):
        parameters = library.SearchParams(hnsw_ef=setting)

        def one(query):
            query = library.Query.Nearest(query.tolist())
            return [point.id for point in shard.query(library.QueryRequest(limit=K, query=query, params=parameters))]

        return one

    return [("ef", [10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512], search)]


# Rows of a list by LanceDB's own choice.
LANCE_LIST_ROWS = 8192


def lance_connect(library, directory, arguments):
    session = library.Session(
        index_cache_size_bytes=arguments.memory // 4, metadata_cache_size_bytes=arguments.memory // 16
    )
    return library.connect(directory, session=session)


def build_lance(rows, directory, arguments):
    import lancedb as library
    import pyarrow as arrow
    from lancedb.index import IvfPq

    schema = arrow.schema([("id", arrow.int64()), ("vector", arrow.list_(arrow.float32(), rows.dims))])

    def batches():
        for start, vectors in rows.batches():
            ids = arrow.array(range(start, start + len(vectors)), arrow.int64())
            column = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.reshape(-1)), rows.dims)
            yield arrow.RecordBatch.from_arrays([ids, column], schema=schema)

    reader = arrow.RecordBatchReader.from_batches(schema, batches())
    table = lance_connect(library, directory, arguments).create_table("rows", reader, schema=schema)
    parts = next(rows.dims // width for width in (4, 2, 1) if rows.dims % width == 0)
    # Its own number of lists. It trains with 256 rows for each; fewer if they do not fit into an eighth of the memory.
    lists = max(1, rows.count // LANCE_LIST_ROWS)
    sample = min(256, max(32, arguments.memory // 8 // (4 * rows.dims) // lists))
    table.create_index(
        "vector",
        config=IvfPq(distance_type="l2", num_partitions=lists, num_sub_vectors=parts, sample_rate=sample),
    )
    return f"IVF_PQ, {lists} lists, {parts} codes of 8 bits, refined with the full vectors"


def load_lance(directory, rows, arguments):
    import lancedb as library

    table = lance_connect(library, directory, arguments).open_table("rows")

    def variant(refine):
        def search(setting):
            def one(query):
                asked = table.search(query).distance_type("l2").nprobes(setting).refine_factor(refine)
                return asked.limit(K).select(["id", "_distance"]).to_arrow()["id"].to_pylist()

            return one

        return f"refine {refine * K}, probes", [1, 2, 4, 8, 16, 32, 64, 128], search

    return [variant(refine) for refine in (2, 5, 10, 20)]


DISKANN_DEGREE = 64


def build_diskann(rows, directory, arguments):
    import diskannpy as library
    import numpy as np

    # The codes stay in memory while it is searched: at most half of the limit.
    codes = max(1, min(rows.dims // 2, arguments.memory // 2 // rows.count))
    library.build_disk_index(
        rows.path,
        distance_metric="l2",
        index_directory=directory,
        complexity=100,
        graph_degree=DISKANN_DEGREE,
        build_memory_maximum=0.75 * arguments.memory / 2**30,
        num_threads=arguments.threads,
        num_of_pq_chunks=codes,
        vector_dtype=np.float32,
    )
    return f"Vamana degree {DISKANN_DEGREE}, complexity 100, {codes} bytes of codes in memory"


def load_diskann(directory, rows, arguments):
    import diskannpy as library

    node = 4 * (rows.dims + DISKANN_DEGREE + 1)
    index = library.StaticDiskIndex(
        directory,
        num_threads=arguments.threads,
        beam_width=4,
        num_nodes_to_cache=min(rows.count // 10, arguments.memory // 8 // node),
    )

    def search(setting):
        return lambda query: index.search(query, K, setting).identifiers

    return [("complexity", [10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512], search)]


Engine = collections.namedtuple("Engine", "build load distribution module")
ENGINES = {
    "qdrant-edge": Engine(build_qdrant, load_qdrant, "qdrant-edge-py", "qdrant_edge"),
    "lancedb": Engine(build_lance, load_lance, "lancedb", "lancedb"),
    "faiss-ivf": Engine(build_faiss, load_faiss, "faiss-cpu", "faiss"),
    "diskann": Engine(build_diskann, load_diskann, "diskannpy-rust", "diskannpy"),
}


def version(engine):
    try:
        return importlib.metadata.version(ENGINES[engine].distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


# The processes of an engine.


def status_mb(key):
    with open("/proc/self/status") as file:
        found = dict(line.split(":", 1) for line in file)
    return 1024 * int(found[key].split()[0]) / 1e6


def limit_data(memory):
    """Limits private memory. Memory that the imported modules have reserved and not used does not count."""
    reserved = max(0, round(1e6 * (status_mb("VmData") - status_mb("RssAnon"))))
    resource.setrlimit(resource.RLIMIT_DATA, (memory + reserved,) * 2)


def import_engine(arguments):
    __import__(ENGINES[arguments.engine].module)
    if arguments.limit_data:
        limit_data(arguments.memory)


def quantile(times, share):
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


def measure(search, queries, truth, rounds):
    """Asks all queries up to `rounds` times. Returns the recall, and the times of each round."""
    times, hits, started = [], 0, time.monotonic()
    for number in range(rounds):
        if number >= SWEEP_ROUNDS and time.monotonic() - started > ROUNDS_SECONDS_MAX:
            break
        times.append([])
        for query, wanted in zip(queries, truth):
            before = time.perf_counter()
            ids = search(query)
            times[-1].append(time.perf_counter() - before)
            hits += len(set(map(int, ids)) & wanted)
    return hits / (K * len(times) * len(truth)), times


def sweep(variants, queries, truth):
    """Measures settings of each variant until one reaches the recall or further settings bring no gain."""
    points = []
    for place, (name, settings, search) in enumerate(variants):
        recalls = []
        for setting in settings:
            recall, (_, times) = measure(search(setting), queries, truth, SWEEP_ROUNDS)
            p50, p95 = quantile(times, 0.5), quantile(times, 0.95)
            print(f"  {name} {setting}: recall {recall:.4f}, p50 {p50:.3f} ms", file=sys.stderr, flush=True)
            point = {"setting": f"{name} {setting}", "choice": [place, setting]}
            points.append(point | {"recall": recall, "p50_ms": p50, "p95_ms": p95})
            recalls.append(recall)
            risen = len(recalls) < 3 or recalls[-1] > recalls[-3] + RECALL_STEP
            if not risen or recalls[-1] >= RECALL_WANTED:
                break
    return points


def chosen(points):
    """Returns the fastest point with the wanted recall, or the one with the best recall."""
    reached = [point for point in points if point["recall"] >= RECALL_WANTED]
    if reached:
        return min(reached, key=lambda point: point["p50_ms"])
    return max(points, key=lambda point: point["recall"])


def run_build(arguments):
    rows = Rows(os.path.join(arguments.data, "base.fbin"))
    import_engine(arguments)
    started = time.monotonic()
    index = ENGINES[arguments.engine].build(rows, arguments.index, arguments)
    return {"build_s": time.monotonic() - started, "index": index, "build_rss_mb": status_mb("VmHWM")}


def run_search(arguments):
    rows, queries, truth = (Rows(os.path.join(arguments.data, name)) for name in ("base.fbin", "query.fbin", "truth.ibin"))
    queries = queries.read(0, queries.count)
    truth = [set(map(int, row[:K])) for row in truth.read(0, truth.count, "<u4")]
    warm_up = arguments.warm_up
    if not 0 < warm_up < len(queries):
        raise Failure(f"--warm-up must be within 1 and {len(queries) - 1}")
    import_engine(arguments)
    started = time.monotonic()
    variants = ENGINES[arguments.engine].load(arguments.index, rows, arguments)
    name, settings, search = variants[0]
    search(settings[0])(queries[0])
    result = {"ready_s": time.monotonic() - started}
    if arguments.choice:
        place, setting = json.loads(arguments.choice)
        point = {"setting": f"{variants[place][0]} {setting}", "choice": [place, setting]}
    else:
        result["points"] = sweep(variants, queries[:warm_up], truth[:warm_up])
        point = chosen(result["points"])
    _, _, search = variants[point["choice"][0]]
    search = search(point["choice"][1])
    for query in queries[:warm_up]:
        search(query)
    # The first round asks queries that were never asked before, the others repeat them.
    recall, (first, *repeated) = measure(search, queries[warm_up:], truth[warm_up:], 1 + REPEATS)
    result |= point | {"recall": recall, "p50_ms": quantile(first, 0.5), "p95_ms": quantile(first, 0.95)}
    result["repeated_p50_ms"] = quantile([one for times in repeated for one in times], 0.5)
    return result | {"rss_mb": status_mb("VmRSS")}


# The process that starts the processes of an engine.


class Failure(Exception):
    """The reason why an engine has no figures."""


class MemoryLimit:
    """A limit of memory for one process: a control group, or RLIMIT_DATA."""

    def __init__(self, memory, parent):
        self.memory, self.group = memory, None
        parent = parent or self.usual_parent()
        if not parent:
            self.kind = "rlimit_data"
            return
        self.group = os.path.join(parent, f"millpond-peer-{os.getpid()}")
        os.mkdir(self.group)
        one = os.path.exists(os.path.join(self.group, "memory.limit_in_bytes"))
        self.kind = "cgroup1" if one else "cgroup2"
        try:
            self.write("memory.limit_in_bytes" if one else "memory.max", memory)
            with contextlib.suppress(OSError):
                # Absent without support for swap.
                self.write("memory.memsw.limit_in_bytes" if one else "memory.swap.max", memory if one else 0)
        except OSError:
            os.rmdir(self.group)
            raise

    @staticmethod
    def usual_parent():
        try:
            with open(os.path.join(GROUPS, "cgroup.subtree_control")) as file:
                return GROUPS if "memory" in file.read().split() and os.access(GROUPS, os.W_OK) else None
        except OSError:
            return None

    def write(self, name, value):
        with open(os.path.join(self.group, name), "w") as file:
            file.write(str(value))

    def enter(self):
        """Moves the calling process into the group. Without one, `limit_data` follows once modules are imported."""
        if self.group:
            self.write("cgroup.procs", os.getpid())
        else:
            resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    def kills(self):
        """Returns the number of processes that the kernel killed because of the limit."""
        if not self.group:
            return 0
        name = "memory.oom_control" if self.kind == "cgroup1" else "memory.events"
        with open(os.path.join(self.group, name)) as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))

    def remove(self):
        deadline = time.monotonic() + GROUP_EMPTY_SECONDS_MAX
        while self.group:
            try:
                os.rmdir(self.group)
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    print(f"{self.group} was not removed: {error}", file=sys.stderr)
                    return
                time.sleep(0.05)


def log_text(path):
    with open(path, errors="replace") as file:
        return file.read()


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:REASON_MAX] if lines else "it said nothing"


def start(step, threads, arguments, work, limit, report, choice):
    """Starts the process of a step. Its output goes to the file `log`."""
    libc = ctypes.CDLL(None)
    cores = set(sorted(os.sched_getaffinity(0))[:threads])

    def prepare():
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.sched_setaffinity(0, cores)
        limit.enter()

    command = [sys.executable, os.path.abspath(__file__), "--step", step, "--report", str(report)]
    command += ["--data", arguments.data, "--engine", arguments.engine, "--index", os.path.join(work, "index")]
    command += ["--memory", str(arguments.memory), "--threads", str(threads), "--warm-up", str(arguments.warm_up)]
    command += ["--choice", json.dumps(choice)] if choice else []
    command += [] if limit.group else ["--limit-data"]
    counts = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "LANCE_CPU_THREADS", "TOKIO_WORKER_THREADS")
    environment = os.environ | {name: str(threads) for name in counts} | {"TMPDIR": work, "RUST_LOG": "warn"}
    with open(os.path.join(work, "log"), "wb") as log:
        return subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, pass_fds=[report], preexec_fn=prepare
        )


def run_process(step, threads, seconds, arguments, work, choice=None):
    """Runs one step in a limited process, kills the process and returns its report and the kind of limit."""
    limit = MemoryLimit(arguments.memory, arguments.group)
    receiver, sender = os.pipe()
    with os.fdopen(receiver, "rb") as reports:
        try:
            try:
                child = start(step, threads, arguments, work, limit, sender, choice)
            finally:
                os.close(sender)
            try:
                # The pipe ends with the report, or with the process.
                ended = select.select([reports], [], [], seconds)[0]
                text = reports.read() if ended else b""
                if ended and not text:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(EXIT_SECONDS_MAX)
            finally:
                child.kill()
                code = child.wait()
            kills = limit.kills()
        finally:
            limit.remove()
    log = log_text(os.path.join(work, "log"))
    sys.stderr.write(log[-LOG_MAX:])
    if text:
        return json.loads(text), limit.kind
    if not ended:
        raise Failure(f"{step}: not finished after {seconds:.0f} s")
    if kills:
        raise Failure(f"{step}: the kernel killed it because it used more than {arguments.memory} bytes of memory")
    reason = last_line(log)
    raise Failure(f"{step}: {reason}" if code >= 0 else f"{step}: ended by {signal.Signals(-code).name}: {reason}")


def index_files(work):
    for folder, _, names in os.walk(os.path.join(work, "index")):
        yield from (os.path.join(folder, name) for name in names)


def leave_page_cache(work):
    """Writes the files of the index to the medium and removes them from the page cache."""
    for path in index_files(work):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def run_engine(arguments, work):
    os.mkdir(os.path.join(work, "index"))
    result = {"engine": arguments.engine, "version": version(arguments.engine), "memory_limit_mb": arguments.memory / 1e6}
    built, kind = run_process("build", arguments.threads, arguments.build_limit, arguments, work)
    result |= built | {"limited_by": kind, "p50_ms": {}, "p95_ms": {}, "repeated_p50_ms": {}, "rss_mb": 0.0}
    result["disk_mb"] = sum(512 * os.stat(path).st_blocks for path in index_files(work)) / 1e6
    choice = None
    for threads in arguments.search_threads:
        leave_page_cache(work)
        found, _ = run_process("search", threads, SEARCH_SECONDS_MAX, arguments, work, choice)
        if choice is None:
            choice = found["choice"]
            result |= {name: found[name] for name in ("recall", "ready_s", "setting", "points")}
        for name in ("p50_ms", "p95_ms", "repeated_p50_ms"):
            result[name][str(threads)] = found[name]
        result["rss_mb"] = max(result["rss_mb"], found["rss_mb"])
    return result


def arguments_given():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the engines that are installed, one a line")
    parser.add_argument("--data", help="folder with base.fbin, query.fbin and truth.ibin")
    parser.add_argument("--engine", choices=sorted(ENGINES))
    parser.add_argument("--json", help="file for the result")
    parser.add_argument("--memory", type=int, help="bytes that each process may use")
    parser.add_argument("--work", help="folder for the index [the folder for temporary files]")
    parser.add_argument("--threads", type=int, default=2, help="for building")
    parser.add_argument("--search-threads", default="1", help="numbers of threads that search, with commas")
    parser.add_argument("--warm-up", type=int, default=100, help="first queries, which choose the setting and are not timed")
    parser.add_argument("--build-limit", type=float, default=3600, help="seconds that building may take")
    parser.add_argument("--group", help="folder of a control group below which groups are made")
    parser.add_argument("--end-with-parent", action="store_true", help="end if the process that started this one ends")
    for name in ("--step", "--report", "--index", "--choice"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--limit-data", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    needed = (arguments.data, arguments.engine, arguments.memory, arguments.json or arguments.step)
    if not arguments.list and not all(needed):
        parser.error("--data, --engine, --memory and --json are needed, or --list")
    try:
        arguments.search_threads = [int(text) for text in arguments.search_threads.split(",")]
    except ValueError:
        parser.error("--search-threads is not a list of numbers with commas")
    if min(arguments.threads, *arguments.search_threads) < 1 or arguments.build_limit <= 0:
        parser.error("--threads, --search-threads and --build-limit must be above 0")
    return arguments


def end(number, _frame):
    # A second signal does not interrupt the removal of the files.
    for each in END_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(f"ended by {signal.Signals(number).name}")


def end_by_signals(with_parent):
    """Makes signals end this process in order, and the end of its parent too if that is wanted."""
    for each in END_SIGNALS:
        # nohup ignores SIGHUP.
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, end)
    if with_parent:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main():
    arguments = arguments_given()
    if arguments.list:
        print("\n".join(engine for engine in ENGINES if version(engine)))
        return
    if arguments.step:
        # A process that an engine starts must not keep the pipe open.
        os.set_inheritable(int(arguments.report), False)
        report = (run_build if arguments.step == "build" else run_search)(arguments)
        with os.fdopen(int(arguments.report), "w") as file:
            json.dump(report, file)
        # The parent kills this process, as a crash would.
        signal.pause()
    if not version(arguments.engine):
        name = ENGINES[arguments.engine].distribution
        print(f"{arguments.engine}: not installed; pip install {name} (requirements.txt has its version)", file=sys.stderr)
        sys.exit(MISSING)
    end_by_signals(arguments.end_with_parent)
    try:
        with tempfile.TemporaryDirectory(dir=arguments.work, prefix="peer-", ignore_cleanup_errors=True) as work:
            result = run_engine(arguments, work)
    except (Failure, OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))
    with open(arguments.json, "w") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
