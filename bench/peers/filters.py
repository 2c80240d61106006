"""Measures qdrant-edge with its payload index on the rows and queries of `millpond bench filter`.

    filters.py --data DIR --json OUT [--threads T] [--build-limit S] [--end-with-parent]

DIR holds vectors (f32), tenants and clusters (u32), scores (f64), row by row, cases.json: queries by selectivity, each
with its vector, its condition and the ids of its true hits, and unfiltered.json: the true hits of the first case's vectors
without a filter. Each call has one query and one filter that no other query has. The time includes the call from Python.
Searches without a filter run twice, and the second pass counts, as for Millpond.

SIGALRM ends the process if building takes longer than --build-limit.
"""

import argparse
import importlib.metadata
import json
import math
import os
import sys
import tempfile
import time

from vectors import building, end_with_parent

K = 10
EF = 128
BATCH = 5000
# Rows between two lines of progress.
SAY_ROWS = 100_000


def say(text):
    print(text, file=sys.stderr, flush=True)


def quantile(values, share):
    """Returns the value of the rank that Millpond's histograms take: the smallest that `share` of the values do not exceed."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def condition(library, wanted):
    (kind, value), = wanted.items()
    if kind == "tenant":
        return library.FieldCondition(key="tenant", match=library.MatchValue(f"tenant-{value}"))
    if kind == "score":
        return library.FieldCondition(key="score", range=library.RangeFloat(gte=value[0], lt=value[1]))
    return library.FieldCondition(key="cluster", match=library.MatchAny(value))


def build(library, numpy, folder, threads, directory):
    def column(name, kind):
        return numpy.fromfile(os.path.join(folder, name), kind)

    tenants, clusters, scores = column("tenants", "<u4"), column("clusters", "<u4"), column("scores", "<f8")
    vectors = column("vectors", "<f4").reshape(len(tenants), -1)
    graph = library.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=1000, max_indexing_threads=threads)
    shard = library.EdgeShard.create(
        directory,
        library.EdgeConfig(
            vectors=library.EdgeVectorParams(size=vectors.shape[1], distance=library.Distance.Euclid, hnsw_config=graph),
            hnsw_config=graph,
            optimizers=library.EdgeOptimizersConfig(
                default_segment_number=1, indexing_threshold=1000, max_segment_size=100_000_000
            ),
            max_search_threads=1,
        ),
    )
    types = library.PayloadSchemaType
    for field, kind in (("tenant", types.Keyword), ("score", types.Float), ("cluster", types.Integer)):
        shard.update(library.UpdateOperation.create_field_index(field, kind))
    for start in range(0, len(tenants), BATCH):
        if start % SAY_ROWS == 0:
            say(f"  {start} of {len(tenants)} rows written")
        points = [
            library.Point(
                row,
                vectors[row].tolist(),
                {"tenant": f"tenant-{tenants[row]}", "score": float(scores[row]), "cluster": int(clusters[row])},
            )
            for row in range(start, min(start + BATCH, len(tenants)))
        ]
        shard.update(library.UpdateOperation.upsert_points(points))
    say(f"{len(tenants)} rows written; building the graph with {threads} threads")
    shard.optimize()
    return shard


def measure(library, shard, queries, truth, filtered):
    """Asks each query once. `truth` has the ids of its true hits."""
    times, found, wanted = [], 0, 0
    parameters = library.SearchParams(hnsw_ef=EF)
    for query, nearest_ids in zip(queries, truth):
        limit = library.Filter(must=[condition(library, query["condition"])]) if filtered else None
        nearest = library.Query.Nearest(query["vector"])
        started = time.perf_counter()
        hits = shard.query(library.QueryRequest(limit=K, query=nearest, filter=limit, params=parameters))
        times.append(1000 * (time.perf_counter() - started))
        found += len({hit.id for hit in hits} & set(nearest_ids))
        wanted += len(nearest_ids)
    return {"p50_ms": quantile(times, 0.5), "p99_ms": quantile(times, 0.99), "recall": found / max(1, wanted)}


def measure_all(library, shard, cases, unfiltered):
    """Measures without a filter, twice as for Millpond, then each case."""
    queries = cases[0]["queries"]
    measure(library, shard, queries, unfiltered, False)
    figures = {"unfiltered": measure(library, shard, queries, unfiltered, False)}
    for case in cases:
        say(f"  searching: {case['name']}")
        truth = [query["nearest"] for query in case["queries"]]
        figures[case["name"]] = measure(library, shard, case["queries"], truth, True)
    return figures


def read_json(folder, name):
    with open(os.path.join(folder, name)) as file:
        return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder with the rows and the queries")
    parser.add_argument("--json", required=True, help="file for the result")
    parser.add_argument("--threads", type=int, default=2, help="for building")
    parser.add_argument("--build-limit", type=float, default=3600, help="seconds that building may take")
    parser.add_argument("--end-with-parent", action="store_true", help="end if the process that started this one ends")
    arguments = parser.parse_args()
    if arguments.end_with_parent:
        end_with_parent()
    try:
        import numpy
        import qdrant_edge as library
    except ImportError as error:
        sys.exit(f"{error.name} is not installed; pip install qdrant-edge-py numpy (requirements.txt has their versions)")
    cases, unfiltered = (read_json(arguments.data, name) for name in ("cases.json", "unfiltered.json"))
    with tempfile.TemporaryDirectory(dir=arguments.data) as directory:
        started = time.monotonic()
        with building(arguments.build_limit):
            shard = build(library, numpy, arguments.data, arguments.threads, directory)
        built = time.monotonic() - started
        say(f"index built in {built:.1f} s; searching")
        figures = measure_all(library, shard, cases, unfiltered)
        shard.close()
    result = {"version": importlib.metadata.version("qdrant-edge-py"), "build_s": built, "cases": figures}
    with open(arguments.json, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
