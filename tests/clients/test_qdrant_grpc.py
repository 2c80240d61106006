"""qdrant-client over gRPC, unmodified. The same server gives the expected answers over REST."""

import random

import grpc
import numpy as np
import pytest
from collections_server import start
from google.protobuf.json_format import MessageToDict
from keys import new_key
from qdrant_client import QdrantClient, models
from qdrant_client import grpc as pb
from qdrant_points import DIMS, a_filter, assert_alike, everything, points, scored, vectors

COUNT = 200


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = start(tmp_path_factory.mktemp("qdrant-grpc"))
    yield server
    assert server.stop() == 0, server.log_text()


def connect(server, **options) -> QdrantClient:
    return QdrantClient(
        host="127.0.0.1", port=server.http_port, grpc_port=server.grpc_port, prefer_grpc=True, https=False, timeout=60,
        **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def client(server):
    client = connect(server)
    yield client
    client.close()


@pytest.fixture(scope="module")
def rest(server):
    client = QdrantClient(url=server.url, timeout=60)
    yield client
    client.close()


@pytest.fixture
def collection(client, request):
    """A name of a collection that is deleted after the test."""
    name = request.node.name
    yield name
    client.delete_collection(name)


def params(distance=models.Distance.COSINE) -> models.VectorParams:
    return models.VectorParams(size=DIMS, distance=distance)


def filled(client, collection, distance=models.Distance.DOT):
    client.create_collection(collection, vectors_config=params(distance))
    client.upsert(collection, points(1, COUNT), wait=True)


def code(call, *arguments, **keywords) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **keywords)
    return caught.value.code()


def test_a_collection_is_described_as_over_rest(client, rest, collection):
    assert not client.collection_exists(collection)
    assert client.create_collection(
        collection, vectors_config={"v": params()}, metadata={"owner": "us", "n": 1},
        hnsw_config=models.HnswConfigDiff(m=8), quantization_config=models.BinaryQuantization(
            binary=models.BinaryQuantizationConfig(always_ram=True)
        ),
    )  # fmt: skip
    schema = models.IntegerIndexParams(type="integer", lookup=True, range=False)
    client.create_payload_index(collection, "n", schema)
    words = models.TextIndexParams(
        type="text", tokenizer="whitespace", ascii_folding=True, min_token_len=2, on_disk=True,
        stopwords=models.StopwordsSet(languages=[models.Language.ENGLISH], custom=["pond"]),
        stemmer=models.SnowballParams(type="snowball", language="english"),
    )  # fmt: skip
    client.create_payload_index(collection, "t", words)
    client.upsert(collection, points(3, 5, "v"))
    client.update_collection(collection, metadata={"n": 2})
    ours, theirs = client.get_collection(collection), rest.get_collection(collection)
    assert ours.config.params.vectors == theirs.config.params.vectors
    assert ours.config.metadata == theirs.config.metadata == {"owner": "us", "n": 2}
    for name in ("status", "optimizer_status", "points_count", "indexed_vectors_count", "segments_count", "warnings"):
        assert getattr(ours, name) == getattr(theirs, name), name
    described = {field: (index.data_type, index.points) for field, index in ours.payload_schema.items()}
    assert described == {field: (index.data_type, index.points) for field, index in theirs.payload_schema.items()}
    assert ours.payload_schema["n"].params.range is False
    for it in (ours, theirs):
        shown = it.payload_schema["t"].params
        assert (shown.tokenizer, shown.ascii_folding, shown.min_token_len) == ("whitespace", True, 2)
        assert (shown.stopwords, shown.stemmer, shown.on_disk) == (words.stopwords, words.stemmer, True)
    client.delete_payload_index(collection, "n")
    alias = f"{collection}-alias"
    create = models.CreateAlias(collection_name=collection, alias_name=alias)
    assert client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])
    assert client.get_aliases().aliases == rest.get_aliases().aliases
    assert [it.alias_name for it in client.get_collection_aliases(collection).aliases] == [alias]
    assert client.count(alias).count == 5
    assert collection in [it.name for it in client.get_collections().collections]
    assert client.info().title.startswith("qdrant")


def test_points_and_queries_are_those_of_rest(client, rest, collection):
    filled(client, collection)
    assert_alike(everything(client, collection), everything(rest, collection), "all")
    rng, found = random.Random(7), 0
    for number, query in enumerate(vectors(np.random.default_rng(7), 80)):
        asked = {
            "query": query if number % 5 else number + 1,
            "query_filter": a_filter(rng) if number % 3 else None,
            "limit": rng.choice([1, 10, 50]),
            "offset": rng.choice([None, 2]),
            "with_payload": rng.choice([True, False, ["city", "deep.k"], models.PayloadSelectorExclude(exclude=["tags"])]),
            "with_vectors": rng.choice([True, False]),
            "score_threshold": rng.choice([None, 0.5]),
        }
        # A message cannot tell an empty payload from none.
        ours, theirs = (
            [(row[0], row[1], row[2] or None, row[3]) for row in scored(it, collection, **asked)] for it in (client, rest)
        )
        assert_alike(ours, theirs, f"{number}: {asked}")
        found += len(theirs)
        chosen = asked["query_filter"]
        assert client.count(collection, count_filter=chosen) == rest.count(collection, count_filter=chosen)
    assert found > 200, "the filters let hardly anything through, so that nothing was compared"


def test_every_kind_of_query_is_that_of_rest(client, rest, collection):
    filled(client, collection, models.Distance.COSINE)
    one, other = vectors(np.random.default_rng(4), 2)
    cheap = models.Filter(must=[models.FieldCondition(key="price", range=models.Range(lt=1.0))])
    both_ways = [models.Prefetch(query=other, limit=20), models.Prefetch(query=12, limit=15, filter=cheap)]
    recommend = models.RecommendInput(positive=[3, one], negative=[9], strategy=models.RecommendStrategy.AVERAGE_VECTOR)
    for asked in (
        {"query": models.RecommendQuery(recommend=recommend)},
        {"query": models.NearestQuery(nearest=one, mmr=models.Mmr(diversity=0.7, candidates_limit=40)), "limit": 8},
        {"query": models.FusionQuery(fusion="dbsf"), "prefetch": both_ways},
        {"query": models.RrfQuery(rrf=models.Rrf(k=10, weights=[3.0, 1.0])), "prefetch": both_ways},
        {"query": other, "prefetch": models.Prefetch(query=one, prefetch=both_ways, limit=12)},
        {"query": one, "search_params": models.SearchParams(exact=True, hnsw_ef=64)},
        {"query_filter": cheap, "limit": 5},
    ):
        assert_alike(scored(client, collection, **asked), scored(rest, collection, **asked), str(asked))
    order = models.OrderByQuery(order_by=models.OrderBy(key="price", direction=models.Direction.DESC, start_from=2.5))
    ours, theirs = (it.query_points(collection, query=order, limit=7).points for it in (client, rest))
    assert [(it.id, it.order_value) for it in ours] == [(it.id, it.order_value) for it in theirs]
    batch = [models.QueryRequest(query=one, limit=3), models.QueryRequest(query=4, limit=2, with_payload=True)]
    ours, theirs = (it.query_batch_points(collection, batch) for it in (client, rest))
    assert [[hit.id for hit in it.points] for it in ours] == [[hit.id for hit in it.points] for it in theirs]
    for key in ("city", "n"):
        groups = (it.query_points_groups(collection, query=one, group_by=key, limit=5) for it in (client, rest))
        ours, theirs = ([(it.id, [hit.id for hit in it.hits]) for it in found.groups] for found in groups)
        assert ours == theirs
        assert client.facet(collection, key) == rest.facet(collection, key)


def test_changes_are_those_of_rest(client, rest, collection):
    filled(client, collection)
    rng = random.Random(9)
    for number in range(20):
        target = rng.choice([models.FilterSelector(filter=a_filter(rng, 1)), models.PointIdsList(points=[number + 1])])
        change = number % 6
        if change == 0:
            client.set_payload(collection, {"n": number, "new": {"number": [1.5, None, number]}}, points=target)
        elif change == 1:
            client.set_payload(collection, {"k": number}, points=target, key="deep")
        elif change == 2:
            client.overwrite_payload(collection, {"only": number}, points=target)
        elif change == 3:
            client.delete_payload(collection, ["tags", "deep.k"], points=target)
        elif change == 4:
            client.clear_payload(collection, points_selector=models.PointIdsList(points=[number + 1]))
        else:
            client.delete(collection, points_selector=models.PointIdsList(points=[number + 1]))
        assert_alike(everything(client, collection), everything(rest, collection), f"{number}: {change}")
    assert rest.count(collection).count < COUNT
    uuid = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26"
    made = models.PointStruct(id=uuid, vector=[1.0] * DIMS, payload={"a": {"b": [True]}})
    client.batch_update_points(collection, [
        models.UpsertOperation(upsert=models.PointsList(points=[made])),
        models.SetPayloadOperation(set_payload=models.SetPayload(payload={"c": 1}, points=[uuid])),
        models.DeleteOperation(delete=models.PointIdsList(points=[2])),
    ])  # fmt: skip
    found = client.retrieve(collection, [uuid, 2], with_vectors=True)
    assert [(it.id, it.payload, it.vector) for it in found] == [(uuid, {"a": {"b": [True]}, "c": 1}, [1.0] * DIMS)]


def test_large_writes_arrive_and_a_large_query_is_refused(client, rest, collection):
    size = 1024
    client.create_collection(collection, vectors_config=models.VectorParams(size=size, distance=models.Distance.DOT))
    rows = np.random.default_rng(5).standard_normal((2000, size)).astype(np.float32)
    client.upload_collection(collection, rows, ids=range(2000), batch_size=2000)
    assert client.count(collection).count == 2000
    found = rest.retrieve(collection, [1999], with_vectors=True)[0].vector
    assert np.array_equal(np.array(found, np.float32), rows[1999]), "a number of a vector has changed"
    # More than 4 MiB.
    new = [models.PointVectors(id=at, vector=rows[at + 1].tolist()) for at in range(1100)]
    client.update_vectors(collection, new)
    found = rest.retrieve(collection, [1099], with_vectors=True)[0].vector
    assert np.array_equal(np.array(found, np.float32), rows[1100])
    large = models.Filter(must=[models.HasIdCondition(has_id=list(range(1_500_000)))])
    assert code(client.count, collection, count_filter=large) == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_older_calls_are_answered(server, client, collection):
    filled(client, collection)
    query = vectors(np.random.default_rng(3), 1)[0]
    expected = [hit.id for hit in client.query_points(collection, query=query, limit=5).points]
    with grpc.insecure_channel(server.grpc) as channel:
        stub = pb.PointsStub(channel)
        search = pb.SearchPoints(collection_name=collection, vector=query, limit=5)
        assert [hit.id.num for hit in stub.Search(search, timeout=60).result] == expected
        batch = pb.SearchBatchPoints(collection_name=collection, search_points=[search])
        assert [hit.id.num for hit in stub.SearchBatch(batch, timeout=60).result[0].result] == expected
        likes = pb.RecommendPoints(collection_name=collection, positive=[pb.PointId(num=3)], limit=5)
        found = [hit.id.num for hit in stub.Recommend(likes, timeout=60).result]
        assert found == [hit.id for hit in client.query_points(collection, query=3, limit=5).points]
        # Clients before version 1.16 write and read the numbers of a vector without a kind.
        old = pb.PointStruct(id=pb.PointId(num=9000), vectors=pb.Vectors(vector=pb.Vector(data=query)))
        stub.Upsert(pb.UpsertPoints(collection_name=collection, points=[old], wait=True), timeout=60)
        asked = pb.GetPoints(
            collection_name=collection, ids=[pb.PointId(num=9000)], with_vectors=pb.WithVectorsSelector(enable=True)
        )
        vector = stub.Get(asked, timeout=60).result[0].vectors.vector
        assert list(vector.data) == list(vector.dense.data) == pytest.approx(query)


def test_mistakes_have_codes_and_reasons(server, client, collection):
    filled(client, collection)
    codes = grpc.StatusCode
    assert code(client.query_points, "nowhere", query=[1.0] * DIMS) == codes.NOT_FOUND
    assert code(client.query_points, collection, query=[1.0, 2.0]) == codes.INVALID_ARGUMENT
    assert code(client.query_points, collection, query=models.SparseVector(indices=[1], values=[1.0])) == codes.UNIMPLEMENTED
    assert code(client.create_collection, collection, vectors_config=params()) == codes.ALREADY_EXISTS
    taken = models.CreateAlias(collection_name=collection, alias_name=collection)
    taken = models.CreateAliasOperation(create_alias=taken)
    assert code(client.update_collection_aliases, [taken]) == codes.ALREADY_EXISTS
    assert code(client.set_payload, collection, {"x": 1}, points=[1, 9000]) == codes.NOT_FOUND
    assert client.retrieve(collection, [1])[0].payload["x"] == 1
    assert client.clear_payload(collection, points_selector=[9000], wait=False)
    with grpc.insecure_channel(server.grpc) as channel:
        stub = pb.PointsStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Count(pb.CountPoints(), timeout=60)
        assert "collection_name" in caught.value.details()
        with pytest.raises(grpc.RpcError) as caught:
            stub.CreateVectorName(pb.CreateVectorNameRequest(collection_name=collection), timeout=60)
        assert caught.value.code() == codes.UNIMPLEMENTED
        health = pb.QdrantStub(channel).HealthCheck(pb.HealthCheckRequest(), timeout=60)
        assert MessageToDict(health)["title"].startswith("qdrant")


def test_keys_have_their_roles(tmp_path):
    keys = tmp_path / "keys.toml"
    reader, writer = (new_key(keys, "--role", role) for role in ("read", "write"))
    server = start(tmp_path, "--keys", str(keys))
    try:
        write, read, none = connect(server, api_key=writer), connect(server, api_key=reader), connect(server)
        write.create_collection("c", vectors_config=params())
        write.upsert("c", points(1, 3))
        assert read.count("c").count == 3
        assert code(read.upsert, "c", points(1, 3)) == grpc.StatusCode.PERMISSION_DENIED
        assert code(none.count, "c") == grpc.StatusCode.UNAUTHENTICATED
    finally:
        assert server.stop() == 0, server.log_text()
