"""A collection that gets no points for a while is prepared for searches."""

import numpy as np
import pytest
import requests
from collections_server import start

from millpond import wait_for

DIMS = 128
# More than a sixteenth of a memtable.
POINTS = 6000
BATCH = 1000


@pytest.fixture
def server(tmp_path):
    server = start(tmp_path)
    yield server
    assert server.stop() == 0, server.log_text()


def call(server, method: str, path: str, body=None):
    answer = requests.request(method, f"{server.url}/collections/c{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def test_points_are_flushed_and_vectors_stay_in_memory(server):
    vectors = np.random.default_rng(5).standard_normal((POINTS, DIMS)).astype(np.float32)
    call(server, "PUT", "", {"vectors": {"size": DIMS, "distance": "Cosine"}})
    for first in range(0, POINTS, BATCH):
        points = [{"id": at, "vector": vectors[at].tolist()} for at in range(first, first + BATCH)]
        call(server, "PUT", "/points?wait=true", {"points": points})
    wait_for(lambda: call(server, "GET", "/segments")["unflushed_points"], lambda left: left == 0)
    described = wait_for(lambda: call(server, "GET", ""), lambda found: found["status"] == "green")
    assert (described["indexed_vectors_count"], described["optimizing"]) == (POINTS, False)

    def nearest(of: int) -> list[int]:
        found = call(server, "POST", "/points/query", {"query": vectors[of].tolist(), "limit": 10})
        return [point["id"] for point in found["points"]]

    def cache() -> dict[str, float]:
        lines = requests.get(f"{server.url}/metrics", timeout=60).text.splitlines()
        series = [line.rsplit(" ", 1) for line in lines if line.startswith("millpond_search_cache{")]
        return {name.split('"')[1]: float(value) for name, value in series}

    first = [nearest(of) for of in range(20)]
    assert [found[0] for found in first] == list(range(20))
    before = cache()
    # If this process was paused, the vectors may have been read before the first searches.
    assert before["vector_reads"] > 0 or before["blocks_preloaded"] > 0
    assert [nearest(of) for of in range(20)] == first
    after = cache()
    assert after["vector_reads"] == before["vector_reads"] and after["vector_hits"] > before["vector_hits"]
    assert call(server, "GET", "/segments")["memory"]["cached_bytes"] > 0
