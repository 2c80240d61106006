"""Bulk indexing: upload 20,000 vectors in parallel with Qdrant's client, then check the search against exact answers.

    pip install qdrant-client requests
    python examples/bulk_upload.py
"""

import pathlib
import tempfile
import time

import numpy as np
from qdrant_client import QdrantClient, models
from server import serving

ROWS, DIMS, QUERIES, K = 20_000, 64, 100, 10


def main() -> None:
    random = np.random.default_rng(0)
    # Vectors in clusters, as embeddings are.
    centres = random.standard_normal((200, DIMS))
    vectors = centres[random.integers(0, 200, ROWS)] + 0.4 * random.standard_normal((ROWS, DIMS))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    with tempfile.TemporaryDirectory() as empty, serving(pathlib.Path(empty)) as url:
        client = QdrantClient(url=url, timeout=60)
        cosine = models.VectorParams(size=DIMS, distance=models.Distance.COSINE)
        client.create_collection("products", vectors_config=cosine)
        started = time.monotonic()
        # Two processes send 1,000 vectors per request. A request is answered once its vectors are on disk, so large
        # requests are faster than many small ones. The server accepts bodies up to --max-body (64 MiB).
        client.upload_collection(
            "products", vectors=vectors, ids=range(ROWS), payload=({"shop": row % 7} for row in range(ROWS)),
            batch_size=1000, parallel=2, max_retries=5, wait=True,
        )  # fmt: skip
        print(f"{client.count('products').count} vectors uploaded in {time.monotonic() - started:.1f} s")

        correct = 0
        for query in vectors[:QUERIES]:
            exact = np.argsort(-(vectors @ query))[:K]
            found = client.query_points("products", query=query, limit=K).points
            correct += len({point.id for point in found} & set(exact.tolist()))
        print(f"recall@{K} of {QUERIES} queries at least 0.95: {correct / (K * QUERIES) >= 0.95}")
        shop = models.Filter(must=[models.FieldCondition(key="shop", match=models.MatchValue(value=3))])
        found = client.query_points("products", query=vectors[3], query_filter=shop, limit=K).points
        print(f"with a filter: {sorted({point.payload['shop'] for point in found})}")


# The client's processes import this file again.
if __name__ == "__main__":
    main()
