"""Measures qdrant-edge with its payload index on the rows and queries of `millpond bench filter`.

    filters.py --data DIR [--threads T]

DIR holds vectors (f32), tenants and clusters (u32), scores (f64), row by row, and cases.json: queries by selectivity, each
with its vector, its condition and the ids of its true hits. The figures go to stdout as JSON. Each call has one query and one
filter that no other query has. The time includes the call from Python.
"""

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
import time

K = 10
EF = 128
BATCH = 5000


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


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
        points = [
            library.Point(
                row,
                vectors[row].tolist(),
                {"tenant": f"tenant-{tenants[row]}", "score": float(scores[row]), "cluster": int(clusters[row])},
            )
            for row in range(start, min(start + BATCH, len(tenants)))
        ]
        shard.update(library.UpdateOperation.upsert_points(points))
    shard.optimize()
    return shard


def measure(library, shard, queries, filtered):
    times, found, wanted = [], 0, 0
    parameters = library.SearchParams(hnsw_ef=EF)
    for query in queries:
        limit = library.Filter(must=[condition(library, query["condition"])]) if filtered else None
        nearest = library.Query.Nearest(query["vector"])
        started = time.perf_counter()
        hits = shard.query(library.QueryRequest(limit=K, query=nearest, filter=limit, params=parameters))
        times.append(1000 * (time.perf_counter() - started))
        found += len({hit.id for hit in hits} & set(query["nearest"]))
        wanted += len(query["nearest"])
    # Queries without a filter have no true hits in the file.
    recall = found / max(1, wanted) if filtered else 0.0
    return {"p50_ms": quantile(times, 0.5), "p99_ms": quantile(times, 0.99), "recall": recall}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder with the rows and the queries")
    parser.add_argument("--threads", type=int, default=2, help="for building")
    arguments = parser.parse_args()
    try:
        import numpy
        import qdrant_edge as library
    except ImportError as error:
        sys.exit(f"{error.name} is not installed; pip install qdrant-edge-py numpy (requirements.txt has their versions)")
    with open(os.path.join(arguments.data, "cases.json")) as file:
        cases = json.load(file)
    with tempfile.TemporaryDirectory(dir=arguments.data) as directory:
        started = time.monotonic()
        shard = build(library, numpy, arguments.data, arguments.threads, directory)
        built = time.monotonic() - started
        figures = {"unfiltered": measure(library, shard, cases[0]["queries"], False)}
        figures |= {case["name"]: measure(library, shard, case["queries"], True) for case in cases}
        shard.close()
    json.dump({"version": importlib.metadata.version("qdrant-edge-py"), "build_s": built, "cases": figures}, sys.stdout)


if __name__ == "__main__":
    main()
