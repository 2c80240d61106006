"""qdrant-client over REST, unmodified: collections, uploads, aliases, refusals and mistakes."""

import uuid

import numpy as np
import requests
from collections_server import start
from qdrant_client import QdrantClient, models
from qdrant_collections import COUNT, params, refusal
from qdrant_fixtures import collection_fixture, server_fixtures
from qdrant_points import DIMS, assert_alike, everything, points, vectors

server, client = server_fixtures("qdrant")
collection = collection_fixture()


def test_the_root_answers_qdrants_clients_and_others(server, recwarn):
    QdrantClient(url=server.url, check_compatibility=True, timeout=60).close()
    assert not [warning for warning in recwarn if "version" in str(warning.message).lower()]
    json = requests.get(server.url, timeout=60, headers={"accept": "application/json"}).json()
    assert json["version"].startswith("1.")
    assert requests.get(server.url, timeout=60).json()["title"].startswith("qdrant")
    curl = requests.get(server.url, timeout=60, headers={"user-agent": "curl/8.1"})
    assert curl.text.startswith("millpond ")
    page = requests.get(server.url, timeout=60, headers={"accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    for probe in ("healthz", "livez", "readyz"):
        assert requests.get(f"{server.url}/{probe}", timeout=60).status_code == 200
    assert requests.get(f"{server.url}/livez", timeout=60).text == "healthz check passed"
    assert requests.get(f"{server.url}/issues", timeout=60).json()["result"] == {"issues": []}


def test_a_collection_is_created_described_and_deleted(client, collection):
    assert not client.collection_exists(collection)
    schema = models.KeywordIndexParams(type="keyword", is_tenant=True)
    assert client.create_collection(
        collection,
        vectors_config=params(),
        hnsw_config=models.HnswConfigDiff(m=32),
        optimizers_config=models.OptimizersConfigDiff(indexing_threshold=0),
        quantization_config=models.ScalarQuantization(scalar=models.ScalarQuantizationConfig(type="int8")),
        on_disk_payload=True,
        metadata={"owner": "us"},
    )
    assert client.collection_exists(collection)
    assert collection in [it.name for it in client.get_collections().collections]
    again = refusal(client.create_collection, collection, vectors_config=params())
    # LlamaIndex looks for these words, and continues with the collection.
    assert (again.status_code, "already exists" in str(again)) == (409, True)
    client.create_payload_index(collection, "city", models.PayloadSchemaType.KEYWORD)
    client.create_payload_index(collection, "tenant", schema)
    client.upsert(collection, points(3, 5))
    client.update_collection(collection, metadata={"since": 2026}, hnsw_config=models.HnswConfigDiff(m=8))
    info = client.get_collection(collection)
    assert (info.status, info.points_count, info.optimizer_status) == ("green", 5, "ok")
    assert info.config.params.vectors == params()
    assert info.config.metadata == {"owner": "us", "since": 2026}
    assert info.payload_schema["city"].data_type == "keyword"
    having = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key="city"))])
    assert info.payload_schema["city"].points == client.count(collection, count_filter=having).count
    assert (info.config.hnsw_config.m, info.config.quantization_config) == (16, None)
    warned = " ".join(warning.message for warning in info.warnings)
    for name in ("hnsw_config", "optimizers_config", "quantization_config"):
        assert name in warned, warned
    assert "payload_schema.tenant.is_tenant" in warned
    assert "on_disk_payload" not in warned
    assert info.payload_schema["tenant"].params.is_tenant
    client.delete_payload_index(collection, "city")
    assert list(client.get_collection(collection).payload_schema) == ["tenant"]
    assert client.delete_collection(collection)
    assert not client.collection_exists(collection)
    assert not client.delete_collection(collection)
    assert refusal(client.get_collection, collection).status_code == 404
    assert refusal(client.upsert, collection, points(3, 1)).status_code == 404


def test_mistakes_in_older_routes_are_named(client, collection):
    client.create_collection(collection, vectors_config=params())
    row = [0.5] * DIMS
    for path, body, status, word in (
        ("search", {"limit": 1}, 400, "vector"),
        ("search", {"vector": row}, 400, "limit"),
        ("search", {"vector": row, "limit": 0}, 422, "limit"),
        ("search", {"vector": row, "limit": 1, "fitler": {}}, 400, "fitler"),
        ("search", {"vector": {"name": "other", "vector": row}, "limit": 1}, 400, "other"),
        ("search", {"vector": [1.0], "limit": 1}, 400, "expected dim"),
        ("search/batch", {"searches": [{"vector": row, "limit": 1}, {"limit": 1}]}, 400, "searches[1]"),
        ("search/groups", {"vector": row, "limit": 1, "group_by": "n"}, 400, "group_size"),
        ("recommend", {"positive": [7], "limit": 1}, 404, "7"),
        ("recommend", {"limit": 1}, 422, "positive"),
        ("discover", {"limit": 1}, 400, "target"),
    ):
        url = f"{client._client.rest_uri}/collections/{collection}/points/{path}"
        answer = requests.post(url, json=body, timeout=60)
        assert answer.status_code == status, (path, body, answer.text)
        assert word in answer.json()["status"]["error"], (path, body, answer.text)


def test_a_named_vector_uuids_and_uploads(client, collection):
    client.create_collection(collection, vectors_config={"dense": params(models.Distance.DOT)})
    rows = vectors(np.random.default_rng(5), 300)
    ids = [str(uuid.uuid5(uuid.NAMESPACE_URL, str(number))) for number in range(300)]
    payloads = [{"number": number} for number in range(300)]
    columns = {"dense": np.array(rows, dtype=np.float32)}
    client.upload_collection(collection, vectors=columns, ids=ids, payload=payloads, batch_size=32)
    client.upsert(collection, models.Batch(ids=[5], vectors={"dense": [rows[5]]}, payloads=[{"number": 5}]))
    assert client.count(collection).count == 301
    found = client.query_points(
        collection, query=rows[7], using="dense", limit=5, with_payload=True, with_vectors=["dense"]
    )
    exact = np.argsort(-np.array(rows) @ np.array(rows[7]))[:5]
    assert [point.payload["number"] for point in found.points] == exact.tolist()
    assert found.points[0].id == ids[exact[0]]
    np.testing.assert_allclose(found.points[0].vector["dense"], rows[exact[0]], rtol=1e-6)
    got = client.retrieve(collection, [ids[3], 5, 77], with_vectors=True)
    assert [row.id for row in got] == [ids[3], 5]
    assert got[0].payload == {"number": 3}
    assert sorted(row[2]["number"] for row in everything(client, collection)) == sorted([*range(300), 5])
    assert "dense" in str(refusal(client.query_points, collection, query=rows[0]))
    assert refusal(client.upsert, collection, [models.PointStruct(id=1, vector=rows[0])]).status_code == 400


def test_two_processes_upload_into_a_recreated_collection(client, collection):
    client.create_collection(collection, vectors_config=params())
    client.upsert(collection, points(1, 3))
    assert client.recreate_collection(collection, vectors_config=params(models.Distance.DOT))
    assert client.count(collection).count == 0
    client.upload_points(collection, points(2, COUNT), batch_size=16, parallel=2, max_retries=3, wait=True)
    assert client.count(collection).count == COUNT


def test_operations_in_a_batch(client, collection):
    unit = [1.0] + [0.0] * (DIMS - 1)
    client.create_collection(collection, vectors_config=params())
    done = client.batch_update_points(
        collection,
        [
            models.UpsertOperation(upsert=models.PointsList(points=points(2, 6))),
            models.SetPayloadOperation(set_payload=models.SetPayload(payload={"x": 1}, points=[1, 2])),
            models.DeletePayloadOperation(delete_payload=models.DeletePayload(keys=["city"], points=[1])),
            models.OverwritePayloadOperation(overwrite_payload=models.SetPayload(payload={"y": 2}, points=[3])),
            models.ClearPayloadOperation(clear_payload=models.PointIdsList(points=[4])),
            models.DeleteOperation(delete=models.PointIdsList(points=[5])),
            models.UpdateVectorsOperation(
                update_vectors=models.UpdateVectors(points=[models.PointVectors(id=6, vector=unit)])
            ),
            models.UpsertOperation(
                upsert=models.PointsList(points=points(3, 7), update_mode=models.UpdateMode.INSERT_ONLY)
            ),
        ],
    )
    assert [it.status for it in done] == ["completed"] * 8
    rows = {row.id: row.payload for row in client.scroll(collection)[0]}
    assert sorted(rows) == [1, 2, 3, 4, 5, 6, 7]
    assert client.retrieve(collection, [6], with_vectors=True)[0].vector == unit
    assert (rows[1]["x"], rows[2]["x"], rows[3], rows[4]) == (1, 1, {"y": 2}, {})
    assert "city" not in rows[1]


def test_an_alias_is_switched_and_switched_back(client, collection):
    names = [f"{collection}-1", f"{collection}-2"]
    try:
        for name, value in zip(names, (1.0, 2.0), strict=True):
            client.create_collection(name, vectors_config=params(models.Distance.DOT, 2))
            client.upsert(name, [models.PointStruct(id=1, vector=[value, 0.0])])

        def switch(name: str) -> float:
            # The first time there is no alias to delete.
            old = models.DeleteAlias(alias_name=collection)
            new = models.CreateAlias(collection_name=name, alias_name=collection)
            client.update_collection_aliases(
                [models.DeleteAliasOperation(delete_alias=old), models.CreateAliasOperation(create_alias=new)]
            )
            return client.query_points(collection, query=[1.0, 0.0]).points[0].score

        assert [switch(name) for name in (names[0], names[1], names[0])] == [1.0, 2.0, 1.0]
        assert [it.alias_name for it in client.get_collection_aliases(names[0]).aliases] == [collection]
        gone = models.DeleteAlias(alias_name=collection)
        client.update_collection_aliases([models.DeleteAliasOperation(delete_alias=gone)])
        assert collection not in [it.alias_name for it in client.get_aliases().aliases]
    finally:
        for name in names:
            client.delete_collection(name)


def test_unsupported_calls_are_refused_with_a_reason(client, collection):
    client.create_collection(collection, vectors_config=params())
    client.upsert(collection, points(1, 3))
    query, one = client.query_points, vectors(np.random.default_rng(1), 1)[0]
    two = {"a": params(), "b": params()}
    for call, word in (
        (lambda: query(collection, query=models.SparseVector(indices=[1], values=[1.0])), "sparse"),
        (lambda: query(collection, query=[one, one]), "multivector"),
        (lambda: client.create_full_snapshot(), "snapshots"),
        (lambda: client.delete_vectors(collection, [""], models.PointIdsList(points=[1])), "without a vector"),
        (lambda: client.create_collection("no", vectors_config=two), "more than one vector"),
        (lambda: client.create_collection("no", vectors_config={}), "without vectors"),
        (lambda: client.upsert(collection, [models.PointStruct(id=9, vector={})]), "without a vector"),
        (lambda: client.create_collection("no", sparse_vectors_config={"s": models.SparseVectorParams()}), "sparse"),
        (lambda: client.create_collection("no", vectors_config=params(models.Distance.MANHATTAN)), "Manhattan"),
    ):
        error = refusal(call)
        assert error.status_code == 501, error
        assert word in error.content.decode(), error
    assert not client.collection_exists("no")
    picture = {"query": {"nearest": {"image": "http://nowhere/", "model": "m"}}}
    answer = requests.post(f"{client._client.rest_uri}/collections/{collection}/points/query", json=picture, timeout=60)
    assert answer.status_code == 501
    assert "/v1/images" in answer.json()["status"]["error"]
    for method, path in (
        ("GET", "snapshots/x.snapshot"),
        ("GET", "quotas"),
        ("GET", "cluster/telemetry"),
        ("POST", "cluster/recover"),
        ("DELETE", "cluster/peer/1"),
        ("GET", f"collections/{collection}/points/search/matrix/pairs"),
    ):
        answer = requests.request(method, f"{client._client.rest_uri}/{path}", timeout=60)
        assert answer.status_code == 501, (path, answer.text)
        assert path in answer.json()["status"]["error"]
    assert requests.get(f"{client._client.rest_uri}/cluster/recover", timeout=60).status_code == 405


def test_every_spelling_of_ids_and_vector_names_is_read(server, client, collection):
    client.create_collection(collection, vectors_config=params())
    one = str(uuid.uuid4())
    vector = vectors(np.random.default_rng(1), 1)[0]
    client.upsert(collection, [models.PointStruct(id=one, vector=vector)])
    base = f"{server.url}/collections/{collection}/points"
    for spelled in (one, one.upper(), one.replace("-", ""), f"urn:uuid:{one}", f"{{{one}}}"):
        assert requests.get(f"{base}/{spelled}", timeout=60).json()["result"]["id"] == one
        fetched = requests.post(base, json={"ids": [spelled], "with_vectors": True}, timeout=60).json()["result"]
        assert [point["id"] for point in fetched] == [one]
        assert len(fetched[0]["vector"]) == DIMS
        filtered = {"filter": {"must": [{"has_id": [spelled]}]}, "with_vectors": True}
        page = requests.post(f"{base}/scroll", json=filtered, timeout=60).json()["result"]["points"]
        assert len(page[0]["vector"]) == DIMS


def test_a_collection_moves_into_a_local_one(client, collection):
    client.create_collection(collection, vectors_config=params())
    client.upsert(collection, points(1, 30))
    client.create_payload_index(collection, "city", models.PayloadSchemaType.KEYWORD)
    local = QdrantClient(":memory:")
    client.migrate(local, [collection])
    assert_alike(sorted(everything(client, collection)), sorted(everything(local, collection)), "after migrate")


def test_mistakes_are_named(server, client, collection):
    client.create_collection(collection, vectors_config=params())
    base = f"{server.url}/collections/{collection}"

    def error(method: str, path: str, body, status: int = 400) -> str:
        data = body if isinstance(body, str) else None
        answer = requests.request(method, base + path, data=data, json=None if data else body, timeout=60)
        assert answer.status_code == status, answer.text
        return answer.json()["status"]["error"]

    one = [0.5] * DIMS
    assert "points[1].id" in error("PUT", "/points", {"points": [{"id": 1, "vector": one}, {"id": -1, "vector": one}]})
    assert "points[0].vector[2]" in error("PUT", "/points", {"points": [{"id": 1, "vector": [1, 2, "3"]}]})
    assert f"expected dim: {DIMS}, got 2" in error("PUT", "/points", {"points": [{"id": 1, "vector": [1, 2]}]})
    assert f"expected dim: {DIMS}, got 1" in error("POST", "/points/query", {"query": [1]})
    assert "limit" in error("POST", "/points/query", {"query": one, "limit": 0}, 422)
    assert "hnsw_ef" in error("POST", "/points/query", {"query": one, "params": {"hnsw_ef": 0}}, 422)
    assert "positive" in error("POST", "/points/query", {"query": {"recommend": {"negative": [1]}}}, 422)
    assert "fitler" in error("POST", "/points/query", {"query": one, "fitler": {}})
    neither = {"type": "integer", "lookup": False, "range": False}
    assert "lookup" in error("PUT", "/index", {"field_name": "n", "field_schema": neither}, 422)
    tenant = {"type": "keyword", "tenant": True}
    assert "tenant" in error("PUT", "/index", {"field_name": "n", "field_schema": tenant})
    assert "path" in error("PUT", "/index", {"field_name": '"n', "field_schema": "keyword"})
    assert "limit" in error("POST", "/points/scroll", {"limit": -1})
    assert "must: [0]" in error("POST", "/points/count", {"filter": {"must": [{"key": "a"}]}}, 422)
    deep = {"must": []}
    for _ in range(40):
        deep = {"must": [deep]}
    assert "nested" in error("POST", "/points/count", {"filter": deep})
    assert "JSON" in error("POST", "/points/query", '{"query": [1,')
    assert "points or filter" in error("POST", "/points/delete", {})
    reserved = {"id": 1, "vector": one, "payload": {"__millpond_id": 1}}
    assert "__millpond_id" in error("PUT", "/points", {"points": [reserved]})
    for path, body in (("/points", {"ids": [1]}), ("/points/scroll", {}), ("/points/query", {"query": one})):
        assert "with_vector" in error("POST", path, body | {"with_vector": ["other"]})
    assert "id 99" in error("GET", "/points/99", None, 404)
    assert "id 99" in error("POST", "/points/query", {"query": 99}, 404)
    hidden = requests.put(f"{server.url}/collections/.no", json={"vectors": {"size": 2, "distance": "Dot"}}, timeout=60)
    assert (hidden.status_code, "name" in hidden.json()["status"]["error"]) == (400, True)
    long = requests.get(f"{server.url}/collections/{'x' * 256}", timeout=60)
    assert (long.status_code, "name" in long.json()["status"]["error"]) == (422, True)
    for name in ("shard_number", "replication_factor", "write_consistency_factor"):
        zero = {"vectors": {"size": 2, "distance": "Dot"}, name: 0}
        assert requests.put(f"{server.url}/collections/no", json=zero, timeout=60).status_code == 422
    assert '"wiat"' in error("PUT", "/points?wiat=true", {"points": []})
    assert "leave out the last slash" in error("POST", "/points/query/", {"query": one}, 501)
    assert "ordering" in error("POST", "/points/delete?ordering=loose", {"points": [1]})
    assert "timeout" in error("POST", "/points/query?timeout=0", {"query": one}, 422)
    pinned = {"vectors": {"size": 2, "distance": "Dot", "memory": "pinned"}}
    assert requests.put(f"{server.url}/collections/no", json=pinned, timeout=60).status_code == 422
    assert client.count(collection).count == 0


def test_a_server_with_a_key_requires_it(tmp_path):
    server = start(tmp_path, "--api-key", "s3cret")
    with_key = QdrantClient(url=server.url, api_key="s3cret", check_compatibility=False, timeout=60)
    with_key.create_collection("c", vectors_config=params())
    without = QdrantClient(url=server.url, check_compatibility=False, timeout=60)
    for call in (without.get_collections, lambda: without.count("c"), lambda: without.delete_collection("c")):
        assert refusal(call).status_code == 401
    bearer = {"authorization": "Bearer s3cret"}
    assert requests.get(f"{server.url}/collections", headers=bearer, timeout=60).status_code == 200
    assert requests.get(f"{server.url}/healthz", timeout=60).status_code == 200
    assert server.stop() == 0, server.log_text()
