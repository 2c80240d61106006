"""Collections after a kill, a restart and damage, with qdrant-client over REST."""

import itertools
import threading

import numpy as np
from collections_server import start
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse
from qdrant_collections import params, refusal
from qdrant_points import DIMS, everything, points, vectors


def acknowledged(url: str, collection: str, worker: int, into: list[int], stop: threading.Event) -> None:
    """Upserts until the server ends, and records every acknowledged id."""
    client = QdrantClient(url=url, timeout=60, check_compatibility=False)
    rows = vectors(np.random.default_rng(worker), 400)
    for first in itertools.count(worker * 1_000_000, 10):
        ids = list(range(first, first + 10))
        try:
            client.upsert(collection, models.Batch(ids=ids, vectors=[rows[number % 400] for number in ids]))
        except (ApiException, ResponseHandlingException, OSError):
            return
        into.extend(ids)
        if stop.is_set():
            return


def test_acknowledged_writes_survive_kill_9(tmp_path):
    server = start(tmp_path, name="first")
    client = QdrantClient(url=server.url, timeout=60)
    client.create_collection("kept", vectors_config=params())
    client.upsert("kept", [models.PointStruct(id=9_999_999, vector=[1.0] * DIMS, payload={"text": "Grüße"})])
    known: list[list[int]] = [[], [], []]
    threads = [
        threading.Thread(target=acknowledged, args=(server.url, "kept", worker, known[worker], threading.Event()))
        for worker in range(3)
    ]
    for thread in threads:
        thread.start()
    while sum(map(len, known)) < 1000 and any(thread.is_alive() for thread in threads):
        threads[0].join(0.05)
    server.process.kill()
    server.process.wait()
    for thread in threads:
        thread.join()
    again = start(tmp_path, name="second")
    client = QdrantClient(url=again.url, timeout=60)
    # The first write waits for the collection, which opens after the server has started.
    client.upsert("kept", [models.PointStruct(id=9_999_998, vector=[1.0] * DIMS)])
    there = {row[0] for row in everything(client, "kept", 1000)}
    assert len(there) > 1000
    assert not [number for number in itertools.chain(*known) if number not in there]
    assert client.retrieve("kept", [9_999_999])[0].payload == {"text": "Grüße"}
    assert again.stop() == 0, again.log_text()


def wait_open(client: QdrantClient, collection: str) -> None:
    """Waits for the collection, which opens after the server has started."""
    for _ in range(200):
        try:
            client.get_collection(collection)
        except UnexpectedResponse as error:
            if error.status_code != 503:
                raise
        else:
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{collection} is still being opened")


def test_segments_answer_before_and_after_a_restart(tmp_path):
    """Little memory, so that points are flushed and merged while they are added."""
    count, memory = 15_000, ("--search-memory", "40MiB", "--search-cache", "4MiB")
    rows = np.random.default_rng(1).standard_normal((count, DIMS)).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    even = models.Filter(must=[models.FieldCondition(key="even", match=models.MatchValue(value=True))])

    def recall(client: QdrantClient, chosen: models.Filter | None, step: int) -> float:
        found = 0
        for query in np.random.default_rng(2).standard_normal((20, DIMS)).astype(np.float32):
            exact = np.argsort(-(unit[::step] @ query))[:10] * step
            answer = client.query_points("sealed", query=query, limit=10, query_filter=chosen)
            found += len({point.id for point in answer.points} & set(exact.tolist()))
        return found / 200

    for start_number in (1, 2):
        server = start(tmp_path, *memory, name=f"server-{start_number}")
        client = QdrantClient(url=server.url, timeout=60)
        if start_number == 1:
            client.create_collection("sealed", vectors_config=params())
            payloads = ({"even": number % 2 == 0, "number": number} for number in range(count))
            # A client that the server asks to wait for flushes waits.
            client.upload_collection("sealed", rows, payload=payloads, ids=range(count), batch_size=500, max_retries=10)
        info = wait_whole(client, "sealed")
        assert info.segments_count > 1, "nothing was sealed, so the test shows nothing"
        assert info.points_count == count
        assert recall(client, None, 1) >= 0.9
        assert recall(client, even, 2) >= 0.9
        assert client.count("sealed", count_filter=even).count == count // 2
        page, after = client.scroll("sealed", limit=3000, offset=5)
        assert [row.id for row in page] == list(range(5, 3005))
        assert (page[7].payload["number"], after) == (12, 3005)
        if start_number == 1:
            server.process.kill()
            server.process.wait()
        else:
            assert server.stop() == 0, server.log_text()


def wait_whole(client: QdrantClient, collection: str) -> models.CollectionInfo:
    """Waits until all segments are open, and flushes and merges have ended. Returns the description."""
    wait_open(client, collection)
    for _ in range(1200):
        info = client.get_collection(collection)
        if info.status == "green":
            return info
        threading.Event().wait(0.05)
    raise AssertionError(f"{collection} is still partial, flushed or merged")


def test_a_corrupt_collection_is_named_and_the_others_serve(tmp_path):
    server = start(tmp_path, name="first")
    client = QdrantClient(url=server.url, timeout=60)
    for name in ("good", "bad"):
        client.create_collection(name, vectors_config=params())
        client.upsert(name, points(1, 20))
    assert server.stop() == 0
    settings = tmp_path / "collections" / "bad" / "settings"
    settings.write_bytes(settings.read_bytes().replace(b"cosine", b"corine"))
    again = start(tmp_path, name="second")
    client = QdrantClient(url=again.url, timeout=60)
    wait_open(client, "good")
    assert client.count("good").count == 20
    assert sorted(it.name for it in client.get_collections().collections) == ["bad", "good"]
    error = refusal(client.get_collection, "bad")
    assert error.status_code == 500
    assert "settings" in error.content.decode()
    assert client.delete_collection("bad")
    client.create_collection("bad", vectors_config=params())
    assert client.count("bad").count == 0
    assert again.stop() == 0, again.log_text()
