"""Measures one vector engine on the data of `millpond bench vectors`, in the same way.

    vectors.py --data DIR --engine NAME --json OUT [--core N] [--seconds S] [--threads T] [--build-limit S] [--end-with-parent]
    vectors.py --list

DIR holds base.fvecs, query.fvecs and truth.ivecs (L2). The index is built with T threads. Then the process is
pinned to core N, every engine is set to one thread, and each call has one query. A setting gets 100 queries to warm up,
all queries once for recall@10, then S seconds. `qps` divides queries by the processor time of the process, so other work
on the machine does not count; `qps_wall` divides by the elapsed time.

A sweep over the settings of a variant ends after SWEEP_SECONDS_MAX; `cut_short` names the variants that had further settings
then. SIGALRM ends the process if building an index takes longer than --build-limit.

An engine that is not installed gives one line on stderr and exit status 3.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib.metadata
import json
import math
import os
import signal
import sys
import tempfile
import time

K = 10
RECALL_ENOUGH = 0.9965
SWEEP_SECONDS_MAX = 60
# A sweep ends if two further settings gain less than this.
RECALL_STEP = 0.001
MISSING = 3
PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def building(seconds):
    """Limits the time of a build. The default action of SIGALRM ends the process even while an engine holds Python's lock."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def end_with_parent():
    """Kills this process if the process that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def read_vectors(path, kind):
    import numpy as np

    raw = np.fromfile(path, np.int32)
    if raw.size == 0 or raw[0] < 1 or raw.size % (raw[0] + 1):
        sys.exit(f"{path} is not a file of vectors with one length")
    return np.ascontiguousarray(raw.reshape(-1, raw[0] + 1)[:, 1:]).view(kind)


def power_of_two_near(value):
    return 1 << round(math.log2(max(1.0, value)))


# Each engine is a generator. It yields (name of the variant, build seconds, settings, search): `search(setting)` gives
# a function from one query to its ten ids. Settings go from fast to exact.


def faiss_ivfpq(base, threads):
    """IVF, 4-bit product quantisation with fast scan, refined with the full vectors."""
    import faiss

    rows, dims = base.shape
    lists = power_of_two_near(3 * math.sqrt(rows))
    for width in [2] if dims < 256 else [2, 4]:
        started = time.monotonic()
        faiss.omp_set_num_threads(threads)
        index = faiss.index_factory(dims, f"IVF{lists},PQ{dims // width}x4fs,RFlat")
        index.train(base[:: max(1, rows // 100_000)])
        index.add(base)
        built = time.monotonic() - started
        faiss.omp_set_num_threads(1)
        inner = faiss.downcast_index(index.base_index)

        def search(setting):
            inner.nprobe, index.k_factor = setting
            return lambda query: index.search(query[None], K)[1][0]

        probes = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192]
        for factor in (8, 16) if dims < 256 else (8, 16, 32):
            yield f"PQ{dims // width} refine {factor * K}", built, [(probe, factor) for probe in probes], search


def faiss_hnsw(base, threads):
    """A graph over the full vectors."""
    import faiss

    for links in (16, 32):
        started = time.monotonic()
        faiss.omp_set_num_threads(threads)
        index = faiss.IndexHNSWFlat(base.shape[1], links)
        index.hnsw.efConstruction = 100
        index.add(base)
        built = time.monotonic() - started
        faiss.omp_set_num_threads(1)

        def search(setting):
            index.hnsw.efSearch = setting
            return lambda query: index.search(query[None], K)[1][0]

        yield f"links {links}", built, [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512], search


def scann(base, threads):
    """Clusters, anisotropic 4-bit codes in registers, reordered with the full vectors."""
    import scann as library

    rows, started = len(base), time.monotonic()
    builder = library.scann_ops_pybind.builder(base, K, "squared_l2").set_n_training_threads(threads)
    builder = builder.tree(int(2 * math.sqrt(rows)), 16, training_sample_size=min(rows, 250_000))
    index = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(120).build()
    built = time.monotonic() - started
    for refine in (30, 60, 120, 250):

        def search(setting):
            return lambda query: index.search(
                query, final_num_neighbors=K, pre_reorder_num_neighbors=refine, leaves_to_search=setting
            )[0]

        yield f"reorder {refine}", built, [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192], search


def scalable_vs(base, threads):
    """A Vamana graph over the full vectors (its LVQ codes do not run on other makers' processors)."""
    import svs

    for degree in (32, 64):
        started = time.monotonic()
        parameters = svs.VamanaBuildParameters(alpha=1.2, graph_max_degree=degree, window_size=2 * degree)
        index = svs.Vamana.build(parameters, base, svs.DistanceType.L2, num_threads=threads)
        built = time.monotonic() - started
        index.num_threads = 1

        def search(setting):
            index.search_window_size = setting
            return lambda query: index.search(query[None], K)[0][0]

        yield f"degree {degree}", built, [10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512], search


def usearch(base, threads):
    """A graph over the full vectors."""
    import numpy as np
    from usearch.index import Index

    started = time.monotonic()
    index = Index(ndim=base.shape[1], metric="l2sq", dtype="f32", connectivity=16, expansion_add=100)
    index.add(np.arange(len(base)), base, threads=threads)
    built = time.monotonic() - started

    def search(setting):
        index.expansion_search = setting
        return lambda query: index.search(query, K, threads=1).keys

    yield "links 16", built, [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512], search


def qdrant_edge(base, threads):
    """Qdrant's segments in this process: a graph over the full vectors, no payload."""
    import qdrant_edge as library

    started = time.monotonic()
    graph = library.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=1000, max_indexing_threads=threads)
    vectors = library.EdgeVectorParams(size=base.shape[1], distance=library.Distance.Euclid, hnsw_config=graph)
    optimizers = library.EdgeOptimizersConfig(
        default_segment_number=1, indexing_threshold=1000, max_segment_size=100_000_000
    )
    directory = tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR"))
    shard = library.EdgeShard.create(
        directory.name,
        library.EdgeConfig(vectors=vectors, hnsw_config=graph, optimizers=optimizers, max_search_threads=1),
    )
    for start in range(0, len(base), 5000):
        rows = base[start : start + 5000].tolist()
        points = [library.Point(start + at, row, {}) for at, row in enumerate(rows)]
        shard.update(library.UpdateOperation.upsert_points(points))
    shard.optimize()
    built = time.monotonic() - started

    def search(setting):
        parameters = library.SearchParams(hnsw_ef=setting)

        def one(query):
            query = library.Query.Nearest(query.tolist())
            found = shard.query(library.QueryRequest(limit=K, query=query, params=parameters))
            return [point.id for point in found]

        return one

    yield "links 16", built, [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512], search
    shard.close()
    directory.cleanup()


def lancedb_ivfpq(base, threads):
    """LanceDB's table on disk: IVF, product quantisation, refined with the full vectors."""
    import lancedb as library
    import pyarrow as arrow
    from lancedb.index import IvfPq

    rows, dims = base.shape
    # It has its own threads. The process is pinned to one core before it searches.
    os.environ.setdefault("LANCE_CPU_THREADS", str(threads))
    started = time.monotonic()
    directory = tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR"))
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(base.reshape(-1)), dims)
    table = library.connect(directory.name).create_table(
        "rows", arrow.table({"id": arrow.array(range(rows)), "vector": vectors})
    )
    # LanceDB chooses the number of lists.
    parts = max(1, dims // 8)
    table.create_index("vector", config=IvfPq(distance_type="l2", num_sub_vectors=parts))
    built = time.monotonic() - started
    for refine in (4, 16):

        def search(setting):
            def one(query):
                asked = table.search(query).distance_type("l2").nprobes(setting).refine_factor(refine)
                return asked.limit(K).select(["id", "_distance"]).to_arrow()["id"].to_pylist()

            return one

        yield f"PQ{parts} refine {refine * K}", built, [4, 8, 16, 32, 64, 128], search
    directory.cleanup()


# Engine: generator, distribution, module.
ENGINES = {
    "faiss-ivfpq": (faiss_ivfpq, "faiss-cpu", "faiss"),
    "faiss-hnsw": (faiss_hnsw, "faiss-cpu", "faiss"),
    "scann": (scann, "scann", "scann"),
    "scalable-vs": (scalable_vs, "scalable-vs", "svs"),
    "usearch": (usearch, "usearch", "usearch"),
    "qdrant-edge": (qdrant_edge, "qdrant-edge-py", "qdrant_edge"),
    "lancedb": (lancedb_ivfpq, "lancedb", "lancedb"),
}


def version(engine):
    try:
        return importlib.metadata.version(ENGINES[engine][1])
    except importlib.metadata.PackageNotFoundError:
        return None


def pin(cores):
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), cores)


def resident_bytes():
    """Returns this process's memory: anonymous, after freed memory was returned, and pages of files."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as file:
        found = dict(line.split(":", 1) for line in file)
    return {name: 1024 * int(found[key].split()[0]) for name, key in [("own", "RssAnon"), ("file", "RssFile")]}


def measure(search, query, truth, seconds):
    for row in query[:100]:
        search(row)
    found = [search(row) for row in query]
    hits = sum(len(set(map(int, ids)) & wanted) for ids, wanted in zip(found, truth))
    calls, clock, processor = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - clock < seconds:
        for row in query[calls % len(query) : calls % len(query) + 50]:
            search(row)
            calls += 1
    used, passed = time.process_time() - processor, time.perf_counter() - clock
    return {"recall": hits / (K * len(query)), "qps": calls / used, "qps_wall": calls / passed}


def built_variants(arguments, base):
    """Yields the variants of an engine. Each build has --build-limit seconds."""
    variants = ENGINES[arguments.engine][0](base, arguments.threads)
    while True:
        with building(arguments.build_limit):
            variant = next(variants, None)
        if variant is None:
            return
        yield variant


def sweep(arguments, base, query, truth):
    every_core, points, build_seconds, cut_short = os.sched_getaffinity(0), [], {}, []
    before, memory = resident_bytes(), {"own": 0, "file": 0}
    for variant, built, settings, search in built_variants(arguments, base):
        build_seconds[variant] = built
        print(f"{arguments.engine} {variant}: built in {built:.1f} s", file=sys.stderr, flush=True)
        pin({arguments.core} if arguments.core is not None else every_core)
        started, seen = time.monotonic(), []
        for setting in settings:
            point = measure(search(setting), query, truth, arguments.seconds)
            points.append({"setting": f"{variant}, {setting}", **point})
            print(f"  {setting}: recall {point['recall']:.4f}, {point['qps']:.0f}/s", file=sys.stderr, flush=True)
            seen.append(point["recall"])
            risen = len(seen) < 3 or seen[-1] > seen[-3] + RECALL_STEP
            if not risen or seen[-1] > RECALL_ENOUGH or setting == settings[-1]:
                break
            if time.monotonic() - started > SWEEP_SECONDS_MAX:
                cut_short.append(variant)
                break
        grown = {kind: bytes - before[kind] for kind, bytes in resident_bytes().items()}
        memory = {kind: max(memory[kind], bytes) for kind, bytes in grown.items()}
        pin(every_core)
    # Variants may share a build.
    result = {"build_s": sum(set(build_seconds.values())), "memory_bytes": memory, "points": points}
    return result | {"cut_short": cut_short}


def arguments_given():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the engines that are installed, one a line")
    parser.add_argument("--data", help="folder with base.fvecs, query.fvecs and truth.ivecs")
    parser.add_argument("--engine", choices=sorted(ENGINES))
    parser.add_argument("--json", help="file for the result")
    parser.add_argument("--core", type=int, help="the core that searches run on")
    parser.add_argument("--seconds", type=float, default=0.6, help="for each setting")
    parser.add_argument("--threads", type=int, default=2, help="for building")
    parser.add_argument("--build-limit", type=float, default=3600, help="seconds that building an index may take")
    parser.add_argument("--end-with-parent", action="store_true", help="end if the process that started this one ends")
    arguments = parser.parse_args()
    if not arguments.list and not (arguments.data and arguments.engine and arguments.json):
        parser.error("--data, --engine and --json are needed, or --list")
    return arguments


def main():
    arguments = arguments_given()
    if arguments.list:
        print("\n".join(engine for engine in ENGINES if version(engine)))
        return
    if not version(arguments.engine):
        name = ENGINES[arguments.engine][1]
        print(f"{arguments.engine}: not installed; pip install {name} (requirements.txt has its version)", file=sys.stderr)
        sys.exit(MISSING)
    if arguments.end_with_parent:
        end_with_parent()
    import numpy as np

    base, query = (read_vectors(os.path.join(arguments.data, f"{name}.fvecs"), np.float32) for name in ("base", "query"))
    truth = [set(map(int, row[:K])) for row in read_vectors(os.path.join(arguments.data, "truth.ivecs"), np.int32)]
    result = {"engine": arguments.engine, "version": version(arguments.engine)}
    result |= sweep(arguments, base, query, truth)
    with open(arguments.json, "w") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
