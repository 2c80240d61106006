"""qdrant-client over REST, unmodified. Its local mode gives the expected answers."""

import itertools
import random
import threading
import uuid

import numpy as np
import pytest
import requests
from collections_server import start
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse
from qdrant_points import DIMS, a_filter, assert_alike, everything, points, scored, vectors

DISTANCES = [models.Distance.COSINE, models.Distance.DOT, models.Distance.EUCLID]
COUNT = 200


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = start(tmp_path_factory.mktemp("qdrant"))
    yield server
    assert server.stop() == 0, server.log_text()


@pytest.fixture(scope="module")
def client(server):
    client = QdrantClient(url=server.url, timeout=60)
    yield client
    client.close()


@pytest.fixture
def collection(client, request):
    """A name of a collection that is deleted after the test."""
    name = request.node.name.replace("[", "-").replace("]", "")
    yield name
    client.delete_collection(name)


def params(distance=models.Distance.COSINE, size: int = DIMS) -> models.VectorParams:
    return models.VectorParams(size=size, distance=distance)


def both(client, collection, distance, count=COUNT) -> QdrantClient:
    """Creates the same collection here and in the client's local mode."""
    local = QdrantClient(":memory:")
    for each in (client, local):
        each.create_collection(collection, vectors_config=params(distance))
        each.upsert(collection, points(1, count))
    return local


def refusal(call, *arguments, **keywords) -> UnexpectedResponse:
    with pytest.raises(UnexpectedResponse) as caught:
        call(*arguments, **keywords)
    return caught.value


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


@pytest.mark.parametrize("distance", DISTANCES)
def test_queries_answer_as_the_local_mode_does(client, collection, distance):
    local = both(client, collection, distance)
    rng = random.Random(7)
    queries = vectors(np.random.default_rng(7), 150)
    without = models.PayloadSelectorExclude(exclude=["tags", "deep"])
    found = 0
    for number, query in enumerate(queries):
        asked = {
            "query": query,
            "query_filter": a_filter(rng) if number % 3 else None,
            "limit": rng.choice([1, 3, 10, 50]),
            "offset": rng.choice([None, 0, 2]),
            "with_payload": rng.choice([True, False, ["city", "deep.k"], without]),
            "with_vectors": rng.choice([True, False]),
        }
        if rng.random() < 0.3:
            asked["score_threshold"] = {"Cosine": 0.1, "Dot": 0.5, "Euclid": 5.5}[distance.value]
        ours, theirs = scored(client, collection, **asked), scored(local, collection, **asked)
        assert_alike(ours, theirs, f"{number}: {asked}")
        found += len(theirs)
    assert found > 500, "the filters let hardly anything through, so that nothing was compared"


def test_scrolling_and_counting_answer_as_the_local_mode_does(client, collection):
    local = both(client, collection, models.Distance.COSINE)
    assert_alike(everything(client, collection), everything(local, collection), "all")
    rng = random.Random(8)
    for number in range(60):
        chosen, seen = a_filter(rng), []
        offset = None
        for _ in range(COUNT):
            mine, offset = client.scroll(collection, scroll_filter=chosen, limit=7, offset=offset)
            seen += [(row.id, row.payload) for row in mine]
            if offset is None:
                break
        theirs, _ = local.scroll(collection, scroll_filter=chosen, limit=COUNT)
        assert seen == [(row.id, row.payload) for row in theirs], f"{number}: {chosen}"
        assert client.count(collection, count_filter=chosen).count == len(theirs)


def test_values_are_counted_as_in_the_local_mode(client, collection):
    local = both(client, collection, models.Distance.DOT)
    rng = random.Random(11)
    counted = 0
    for number in range(40):
        key, chosen = rng.choice(["city", "tags", "deep.k", "n", "nothing"]), a_filter(rng) if number % 4 else None
        asked = {"facet_filter": chosen, "limit": rng.choice([1, 3, 1000]), "exact": rng.choice([True, False])}
        ours, theirs = (each.facet(collection, key, **asked).hits for each in (client, local))
        assert ours == theirs, f"{number}: {key} {asked}"
        counted += len(theirs)
    assert counted > 50, "the filters let hardly anything through, so that nothing was compared"
    assert len(client.facet(collection, "n").hits) == len(local.facet(collection, "n").hits) <= 10
    client.delete(collection, models.PointIdsList(points=[row[0] for row in everything(client, collection)]))
    assert client.facet(collection, "city").hits == []


def ordered(client, collection, **asked) -> list[tuple]:
    rows, offset = client.scroll(collection, **asked)
    assert offset is None
    return [(row.order_value, row.id) for row in rows]


def test_points_are_ordered_as_in_the_local_mode(client, collection):
    local = both(client, collection, models.Distance.COSINE)
    for each in (client, local):
        for number in range(1, COUNT, 3):
            day = f"2024-{number % 12 + 1:02}-{number % 28 + 1:02}"
            each.set_payload(collection, {"day": day}, points=[number])
    rng = random.Random(12)
    compared = 0
    for number in range(40):
        key = rng.choice(["n", "price", "day", "deep.k", "tags", "nothing"])
        direction = rng.choice([None, models.Direction.ASC, models.Direction.DESC])
        start_from = rng.choice([None, "2024-06-15T00:00:00Z" if key == "day" else rng.uniform(-5, 5)])
        order = models.OrderBy(key=key, direction=direction, start_from=start_from)
        chosen = a_filter(rng, 1) if number % 2 else None
        theirs = ordered(local, collection, order_by=order, scroll_filter=chosen, limit=9 * COUNT)
        # Qdrant says nothing of the order of equal values.
        theirs.sort(reverse=direction == models.Direction.DESC)
        limit = rng.choice([1, 7, 9 * COUNT])
        ours = ordered(client, collection, order_by=order, scroll_filter=chosen, limit=limit)
        assert ours == theirs[:limit], f"{number}: {order} {chosen}"
        query = models.OrderByQuery(order_by=order)
        found = client.query_points(collection, query=query, query_filter=chosen, limit=limit).points
        assert [(point.order_value, point.id) for point in found] == ours
        compared += len(theirs)
    assert compared > 500, "the filters let hardly anything through, so that nothing was compared"
    assert refusal(client.scroll, collection, order_by="n", offset=3).status_code == 400


def test_groups_are_those_of_the_local_mode(client, collection):
    local = both(client, collection, models.Distance.EUCLID)
    rng = random.Random(13)
    grouped = 0
    for number, row in enumerate(vectors(np.random.default_rng(14), 40)):
        asked = {
            "group_by": rng.choice(["city", "n", "tags", "deep.k", "price", "nothing"]),
            "query": rng.choice([row, rng.randrange(1, COUNT)]),
            "query_filter": a_filter(rng, 1) if number % 2 else None,
            "limit": rng.choice([1, 2, 10]),
            "group_size": rng.choice([1, 3, 50]),
            "with_payload": False,
        }
        ours, theirs = (each.query_points_groups(collection, **asked).groups for each in (client, local))
        assert [group.id for group in ours] == [group.id for group in theirs], f"{number}: {asked}"
        for mine, their in zip(ours, theirs, strict=True):
            assert [hit.id for hit in mine.hits] == [hit.id for hit in their.hits], f"{number}: {asked} {mine.id}"
        grouped += len(theirs)
    assert grouped > 50, "the filters let hardly anything through, so that nothing was compared"


def test_changes_act_as_in_the_local_mode(client, collection):
    local = both(client, collection, models.Distance.DOT, 120)
    rng = random.Random(9)
    for number in range(30):
        # The local mode does nothing for an unknown id.
        alive = [row[0] for row in everything(local, collection)]
        chosen, ids = a_filter(rng, 1), rng.sample(alive, 5)
        target = rng.choice([models.FilterSelector(filter=chosen), models.PointIdsList(points=ids)])
        change = rng.randrange(6)
        for each in (client, local):
            if change == 0:
                each.set_payload(collection, {"n": number, "new": {"number": number}}, points=target)
            elif change == 1:
                each.set_payload(collection, {"k": number}, points=target, key="deep")
            elif change == 2:
                each.overwrite_payload(collection, {"only": number}, points=target)
            elif change == 3:
                each.delete_payload(collection, ["tags", "deep.k"], points=target)
            elif change == 4:
                each.clear_payload(collection, points_selector=models.PointIdsList(points=ids))
            else:
                each.delete(collection, points_selector=models.PointIdsList(points=ids))
        if number % 5 == 0:
            assert_alike(everything(client, collection), everything(local, collection), f"{number}: {change}")
    for each in (client, local):
        each.delete(collection, points_selector=models.FilterSelector(filter=a_filter(random.Random(11), 0)))
    assert_alike(everything(client, collection), everything(local, collection), "in the end")


def test_conditional_writes_act_as_in_the_local_mode(client, collection):
    local = both(client, collection, models.Distance.COSINE, 120)
    rng, rows = random.Random(13), np.random.default_rng(13)
    modes = [None, *models.UpdateMode]
    for number in range(40):
        only = rng.choice([None, a_filter(rng, 1)])
        # Some ids have no point, and some come twice.
        ids = [rng.randrange(1, 160) for _ in range(12)]
        fresh = vectors(rows, len(ids))
        payloads = [{"n": rng.randrange(10), "city": rng.choice(["Ulm", "Bern"]), "at": at} for at in range(len(ids))]
        known = {row[0] for row in everything(local, collection)}
        new = [models.PointVectors(id=id, vector=row) for id, row in zip(ids, fresh, strict=True) if id in known]
        mode = rng.choice(modes)
        for each in (client, local):
            if number % 3 == 0 and new:
                each.update_vectors(collection, new, update_filter=only)
                continue
            batch = models.Batch(ids=ids, vectors=fresh, payloads=payloads)
            structs = [
                models.PointStruct(id=id, vector=row, payload=payload)
                for id, row, payload in zip(ids, fresh, payloads, strict=True)
            ]
            sent = batch if number % 3 == 1 else structs
            each.upsert(collection, sent, update_filter=only, update_mode=mode)
        assert_alike(everything(client, collection), everything(local, collection), f"{number}: {mode}, {only}")


def test_an_unknown_id_among_new_vectors_is_not_found(client, collection):
    local = both(client, collection, models.Distance.DOT, 20)
    one, other = vectors(np.random.default_rng(3), 2)
    new = [models.PointVectors(id=id, vector=row) for id, row in ((3, one), (900, one), (4, other), (901, one))]
    error = refusal(client.update_vectors, collection, new)
    assert error.status_code == 404
    assert "900" in error.content.decode()
    with pytest.raises(KeyError):
        local.update_vectors(collection, new)
    assert_alike(everything(client, collection), everything(local, collection), "the other points are changed")
    url = f"{client._client.rest_uri}/collections/{collection}/points/vectors"
    none = requests.put(url, json={"points": []}, timeout=60)
    assert none.status_code == 422, none.text


def test_examples_and_prefetches_answer_as_the_local_mode_does(client, collection):
    local = both(client, collection, models.Distance.COSINE)
    one, other = vectors(np.random.default_rng(4), 2)
    keep = models.Filter(must=[models.FieldCondition(key="flag", match=models.MatchValue(value=True))])
    cheap = models.Filter(must=[models.FieldCondition(key="price", range=models.Range(lt=1.0))])
    recommend = models.RecommendInput(positive=[3, 5], negative=[9], strategy=models.RecommendStrategy.AVERAGE_VECTOR)
    coarse = models.SearchParams(quantization=models.QuantizationSearchParams(rescore=True, oversampling=2.0))
    both_ways = [models.Prefetch(query=other, limit=20), models.Prefetch(query=12, limit=15, filter=cheap)]
    # Two levels: the hits of these two are ranked, joined or made diverse, and then ranked again.
    ranked = models.Prefetch(query=one, prefetch=both_ways, limit=12)
    joined = models.Prefetch(query=models.FusionQuery(fusion="rrf"), prefetch=[ranked, both_ways[1]], limit=9)
    diverse = models.Prefetch(query=models.NearestQuery(nearest=one, mmr=models.Mmr(candidates_limit=30)), limit=9)
    for asked in (
        {"query": 7},
        {"query": 7, "query_filter": keep},
        {"query": models.RecommendQuery(recommend=recommend), "with_payload": True},
        {"query": one, "prefetch": models.Prefetch(query=other, limit=20, params=coarse)},
        {"query": one, "prefetch": [models.Prefetch(query=other), models.Prefetch(query=12, limit=15, filter=cheap)]},
        {"query": one, "prefetch": models.Prefetch(query=other, limit=30, filter=cheap), "query_filter": keep},
        {"query": one, "prefetch": models.Prefetch(filter=cheap, limit=30), "offset": 2, "limit": 4},
        {"query": models.NearestQuery(nearest=one, mmr=models.Mmr(diversity=0.7, candidates_limit=40)), "limit": 8},
        {"query": models.NearestQuery(nearest=4, mmr=models.Mmr()), "limit": 8, "offset": 2, "query_filter": keep},
        {"query": models.FusionQuery(fusion="rrf"), "prefetch": both_ways},
        {"query": models.FusionQuery(fusion="dbsf"), "prefetch": both_ways, "offset": 1, "query_filter": keep},
        {"query": models.RrfQuery(rrf=models.Rrf(k=10, weights=[3.0, 1.0])), "prefetch": both_ways, "with_payload": True},
        {"query": other, "prefetch": ranked},
        {"query": one, "prefetch": joined, "query_filter": keep},
        {"query": other, "prefetch": [diverse, joined], "limit": 15},
        {"query": models.FusionQuery(fusion="dbsf"), "prefetch": [diverse, ranked], "limit": 15},
        {"query_filter": keep, "limit": 5},
        {"query": one, "search_params": models.SearchParams(exact=True, hnsw_ef=64)},
    ):
        assert_alike(scored(client, collection, **asked), scored(local, collection, **asked), str(asked))
    batch = [models.QueryRequest(query=one, limit=3), models.QueryRequest(query=4, limit=2, with_payload=True)]
    for mine, theirs in zip(
        client.query_batch_points(collection, batch), local.query_batch_points(collection, batch), strict=True
    ):
        assert [(it.id, it.payload) for it in mine.points] == [(it.id, it.payload) for it in theirs.points]


def test_older_routes_answer_as_the_local_mode_does(client, collection):
    local = both(client, collection, models.Distance.COSINE)
    rng = random.Random(21)
    base = f"{client._client.rest_uri}/collections/{collection}/points"

    def posted(path: str, body: dict):
        answer = requests.post(f"{base}/{path}", json=body, timeout=60)
        assert answer.status_code == 200, (path, body, answer.text)
        return answer.json()["result"]

    def rows(hits: list[dict]) -> list[tuple]:
        return [(hit["id"], hit["score"], hit.get("payload"), hit.get("vector")) for hit in hits]

    sent = {"search": [], "recommend": []}
    expected = {"search": [], "recommend": []}
    for number, row in enumerate(vectors(np.random.default_rng(22), 40)):
        chosen = a_filter(rng, 1) if number % 3 else None
        limit, offset = rng.choice([1, 5, 30]), rng.choice([None, 0, 2])
        payload, threshold = rng.choice([None, True, ["city", "deep.k"]]), rng.choice([None, 0.1])
        vector = rng.choice([None, True])
        common = {"limit": limit, "offset": offset, "with_payload": payload, "with_vector": vector}
        plain = chosen.model_dump(exclude_none=True, by_alias=True) if chosen else None
        common |= {"score_threshold": threshold, "filter": plain}
        asked = {"limit": limit, "offset": offset, "with_payload": payload or False, "with_vectors": bool(vector)}
        asked |= {"score_threshold": threshold, "query_filter": chosen}
        positive, negative = [row, *rng.sample(range(1, COUNT), 2)], rng.sample(range(1, COUNT), number % 3)
        examples = {"positive": positive, "negative": negative}
        name = rng.choice([row, {"name": "", "vector": row}])
        for route, own, query in (
            ("search", {"vector": name}, row),
            ("recommend", examples, models.RecommendQuery(recommend=models.RecommendInput(**examples))),
        ):
            theirs = scored(local, collection, query=query, **asked)
            assert_alike(rows(posted(route, own | common)), theirs, f"{number}: {route} {asked}")
            sent[route].append(own | common)
            expected[route].append(theirs)
            groups = {"group_by": "deep.k", "group_size": 2, "limit": 3, "filter": common["filter"]}
            ours = posted(f"{route}/groups", own | groups)["groups"]
            found = local.query_points_groups(
                collection, query=query, query_filter=chosen, group_by="deep.k", group_size=2, limit=3
            ).groups
            ours = [(group["id"], [hit["id"] for hit in group["hits"]]) for group in ours]
            assert ours == [(group.id, [hit.id for hit in group.hits]) for group in found], f"{number}: {route} groups"
    for route in ("search", "recommend"):
        for ours, theirs in zip(posted(f"{route}/batch", {"searches": sent[route]}), expected[route], strict=True):
            assert_alike(rows(ours), theirs, f"{route}/batch")


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
    part = models.SliceCondition(slice=models.Slice(total=2, index=0))
    two = {"a": params(), "b": params()}
    for call, word in (
        (lambda: query(collection, query=models.SparseVector(indices=[1], values=[1.0])), "sparse"),
        (lambda: query(collection, query=[one, one]), "multivector"),
        (lambda: query(collection, query=one, query_filter=models.Filter(must=[part])), "slice"),
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
    assert "ordering" in error("POST", "/points/delete?ordering=loose", {"points": [1]})
    assert "timeout" in error("POST", "/points/query?timeout=0", {"query": one}, 422)
    pinned = {"vectors": {"size": 2, "distance": "Dot", "memory": "pinned"}}
    assert requests.put(f"{server.url}/collections/no", json=pinned, timeout=60).status_code == 422
    assert client.count(collection).count == 0


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
    wait_open(client, "kept")
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
            # A client that is told to wait for flushes does so.
            client.upload_collection("sealed", rows, payload=payloads, ids=range(count), batch_size=500, max_retries=10)
        wait_whole(client, "sealed")
        info = client.get_collection("sealed")
        assert info.segments_count > 1, "nothing was sealed, so the test shows nothing"
        assert (info.points_count, info.status) == (count, "green")
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


def wait_whole(client: QdrantClient, collection: str) -> None:
    """Segments open one by one after the start. Answers are partial until then."""
    wait_open(client, collection)
    for _ in range(200):
        if client.get_collection(collection).status == "green":
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{collection} is still partial")


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
