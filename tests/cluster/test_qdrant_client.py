"""qdrant-client, unmodified, against three nodes: aliases, indexes, groups and snapshots. Its local mode gives answers."""

import json
import pathlib
import random
import sys

import numpy as np
import pytest
from deployment import Cluster
from processes import NodePlan, http_call, wait_until
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))
from qdrant_comparisons import compare_formulas, compare_groups, compare_lookups, compare_matrices, compare_samples
from qdrant_points import DIMS, a_filter, assert_alike, everything, points, vectors

COUNT = 200
# Names of the client's arguments as fields of a request.
QUERY_FIELDS = {"query_filter": "filter", "with_vectors": "with_vector"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("qdrant")
    plans = [NodePlan("a", "root,search,ingest"), NodePlan("b", "root,search,ingest"), NodePlan("c", "search")]
    cluster = Cluster(plans, scratch, scratch / "logs", s3=False, snapshot_entries=4)
    cluster.start()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def clients(cluster):
    made = [QdrantClient(url=cluster.nodes[name].url, timeout=60) for name in ("a", "b")]
    yield made
    for client in made:
        client.close()


@pytest.fixture
def client(clients):
    return clients[0]


@pytest.fixture
def collection(client, request):
    """A name of a collection that is deleted after the test."""
    name = request.node.name.replace("[", "-").replace("]", "")
    yield name
    client.delete_collection(name)


def create(client: QdrantClient, name: str, distance=models.Distance.DOT) -> None:
    client.create_collection(name, vectors_config=models.VectorParams(size=DIMS, distance=distance), shard_number=4)


def with_local(client: QdrantClient, name: str, distance: models.Distance) -> QdrantClient:
    """Fills a collection, and one of the client's local mode, which it returns, with the same points."""
    local = QdrantClient(":memory:")
    for each in (client, local):
        each.create_collection(name, vectors_config=models.VectorParams(size=DIMS, distance=distance))
        each.upsert(name, points(1, COUNT))
    return local


def refusal(call, *arguments, **keywords) -> UnexpectedResponse:
    with pytest.raises(UnexpectedResponse) as caught:
        call(*arguments, **keywords)
    return caught.value


def aliases(client: QdrantClient) -> dict[str, str]:
    return {it.alias_name: it.collection_name for it in client.get_aliases().aliases}


def to(alias: str, collection: str) -> models.CreateAliasOperation:
    return models.CreateAliasOperation(create_alias=models.CreateAlias(alias_name=alias, collection_name=collection))


def test_an_alias_moves_between_collections(clients, collection):
    client, other = clients
    names = [collection, f"{collection}-2"]
    for number, name in enumerate(names):
        create(client, name)
        client.upsert(name, points(number, 5 + number))
    assert client.update_collection_aliases([to("live", names[0])])
    assert client.count("live").count == 5
    # A root that does not know the alias reads it at once.
    other.upsert("live", points(9, 12))
    assert aliases(other) == {"live": names[0]}
    assert other.count(names[0]).count == 12
    # A root reads its own writes at once, and those of another root soon.
    wait_until("the points at the first root", lambda: client.count(names[0]).count == 12, timeout_s=10)
    assert client.collection_exists("live")
    assert [it.alias_name for it in client.get_collection_aliases(names[0]).aliases] == ["live"]

    taken = refusal(create, client, "live")
    assert taken.status_code == 400 and "alias" in str(taken.content), taken
    missing = refusal(client.update_collection_aliases, [to("live", names[1]), to("x", "no-such-collection")])
    assert missing.status_code == 404
    assert aliases(client) == {"live": names[0]}, "either all changes are made or none"

    rename = models.RenameAlias(old_alias_name="live", new_alias_name="current")
    client.update_collection_aliases([to("live", names[1]), models.RenameAliasOperation(rename_alias=rename)])
    assert aliases(client) == {"current": names[1]}
    assert client.count("current").count == 6
    client.delete_collection(names[1])
    assert aliases(client) == {}
    assert refusal(client.count, "current").status_code == 404


def test_changes_of_aliases_at_two_roots_are_all_kept(clients, collection):
    create(clients[0], collection)
    assert clients[1].collection_exists(collection), "another root sees a new collection at once"
    for number in range(6):
        clients[number % 2].update_collection_aliases([to(f"alias-{number}", collection)])
    expected = {f"alias-{number}": collection for number in range(6)}
    for client in clients:
        wait_until("all aliases", lambda it=client: aliases(it) == expected, timeout_s=10)


@pytest.mark.parametrize("size", [0, 4097, 65_536])
def test_a_vector_size_outside_the_limits_is_refused(client, collection, size):
    config = models.VectorParams(size=size, distance=models.Distance.DOT)
    error = refusal(client.create_collection, collection, vectors_config=config)
    assert error.status_code == 422, error
    assert f"{size} is not within 1 and 4096" in error.content.decode()
    assert not client.collection_exists(collection), "no record was written"


def test_grpc_answers_as_rest_does(client, cluster, collection):
    create(client, collection)
    node = cluster.nodes["b"]
    other = QdrantClient(
        host="127.0.0.1", port=node.http_port, grpc_port=node.grpc_port, prefer_grpc=True, https=False, timeout=60
    )
    wait_until("the other root knows the collection", lambda: other.collection_exists(collection))
    other.upsert(collection, points(5, COUNT))
    other.set_payload(collection, {"new": [1, {"a": None}]}, points=[7])
    other.delete(collection, models.PointIdsList(points=[8]))
    assert_alike(everything(other, collection), everything(client, collection), "all")
    # Yellow until the second copies have the log of the new shards.
    def is_green() -> bool:
        return all(it.get_collection(collection).status == models.CollectionStatus.GREEN for it in (other, client))

    wait_until("both roots show all copies", is_green)
    ours = other.get_collection(collection)
    assert (ours.points_count, ours.config.params.shard_number) == (COUNT - 1, 4)
    assert other.collection_exists(collection)
    rng = random.Random(6)
    for row in vectors(np.random.default_rng(6), 10):
        chosen = a_filter(rng, 1)
        ours, theirs = (
            [(hit.id, hit.score) for hit in it.query_points(collection, query=row, query_filter=chosen).points]
            for it in (other, client)
        )
        assert [id for id, _ in ours] == [id for id, _ in theirs]
        np.testing.assert_allclose([score for _, score in ours], [score for _, score in theirs], rtol=1e-6)
        assert other.count(collection, count_filter=chosen) == client.count(collection, count_filter=chosen)
    other.close()


def test_indexes_and_settings_are_described(client, collection):
    client.create_collection(
        collection, vectors_config=models.VectorParams(size=DIMS, distance=models.Distance.COSINE), metadata={"owner": "us"}
    )
    client.upsert(collection, points(3, 20))
    client.create_payload_index(collection, "city", models.PayloadSchemaType.KEYWORD)
    client.create_payload_index(collection, "tenant", models.KeywordIndexParams(type="keyword", is_tenant=True))
    client.update_collection(collection, metadata={"since": 2026}, hnsw_config=models.HnswConfigDiff(m=8))
    info = client.get_collection(collection)
    assert info.config.metadata == {"owner": "us", "since": 2026}
    assert any("hnsw_config" in warning.message for warning in info.warnings)
    having = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key="city"))])
    assert info.payload_schema["city"].points == client.count(collection, count_filter=having).count > 0
    assert info.payload_schema["tenant"].params.is_tenant
    client.delete_payload_index(collection, "city")
    client.update_collection(collection, metadata={"owner": None})
    info = client.get_collection(collection)
    assert (list(info.payload_schema), info.config.metadata) == (["tenant"], {"since": 2026})


@pytest.mark.parametrize("distance", [models.Distance.EUCLID, models.Distance.COSINE])
def test_new_vectors_are_those_of_the_local_mode(client, collection, distance):
    local = with_local(client, collection, distance)

    def new(seed: int, ids: range) -> list[models.PointVectors]:
        rows = vectors(np.random.default_rng(seed), len(ids))
        return [models.PointVectors(id=id, vector=row) for id, row in zip(ids, rows, strict=True)]

    # The local mode refuses an id without a point, and a cluster ignores it.
    client.update_vectors(collection, [*new(31, range(1, 60)), *new(32, range(COUNT + 1, COUNT + 3))])
    local.update_vectors(collection, new(31, range(1, 60)))
    for each in (client, local):
        changes = [
            models.UpdateVectorsOperation(update_vectors=models.UpdateVectors(points=new(33, range(50, 90)))),
            models.DeleteOperation(delete=models.PointIdsList(points=[51, 52])),
            models.UpsertOperation(upsert=models.PointsList(points=points(34, 55)[51:])),
            models.UpdateVectorsOperation(update_vectors=models.UpdateVectors(points=new(35, range(52, 54)))),
        ]
        assert len(each.batch_update_points(collection, changes) or changes) == len(changes)
    assert_alike(everything(client, collection), everything(local, collection), "new vectors")
    only = models.Filter(must=[models.HasIdCondition(has_id=[3])])
    error = refusal(client.update_vectors, collection, new(36, range(1, 4)), update_filter=only)
    assert error.status_code == 501 and "update_filter" in error.content.decode(), error
    one = vectors(np.random.default_rng(1), 1, DIMS + 1)[0]
    wrong = refusal(client.update_vectors, collection, [models.PointVectors(id=1, vector=one)])
    assert wrong.status_code == 400 and "dimension" in wrong.content.decode(), wrong


def test_numbers_come_before_dates(client, cluster, collection):
    """The numbers are above the microseconds of the dates, so an order by the returned values alone differs."""
    create(client, collection)
    when = {id: 10**16 + id if id % 2 else f"2024-06-{id:02}" for id in range(1, 21)}
    client.upsert(collection, [models.PointStruct(id=id, vector=[1.0] * DIMS, payload={"when": it}) for id, it in when.items()])
    ascending = [*range(1, 21, 2), *range(2, 21, 2)]
    for direction, expected in [("asc", ascending), ("desc", ascending[::-1])]:
        order = models.OrderBy(key="when", direction=direction)
        assert [it.id for it in client.scroll(collection, order_by=order, limit=20)[0]] == expected
        found = client.query_points(collection, query=models.OrderByQuery(order_by=order), offset=8, limit=4)
        assert [it.id for it in found.points] == expected[8:12]
    body = json.dumps({"order_by": "when", "limit": 20}).encode()
    path = f"/collections/{collection}/points/scroll"
    status, answer = http_call(cluster.nodes["a"].address, "POST", path, body)
    assert status == 200 and json.loads(answer)["result"].keys() == {"points", "next_page_offset"}


@pytest.mark.parametrize("distance", [models.Distance.EUCLID, models.Distance.COSINE])
def test_groups_are_those_of_the_local_mode(client, collection, distance):
    local = with_local(client, collection, distance)
    rng = random.Random(13)
    grouped = 0
    for number, row in enumerate(vectors(np.random.default_rng(14), 30)):
        asked = {
            "group_by": rng.choice(["city", "n", "tags", "deep.k", "price", "nothing"]),
            "query": rng.choice([row, rng.randrange(1, COUNT)]),
            "query_filter": a_filter(rng, 1) if number % 2 else None,
            "limit": rng.choice([1, 2, 10]),
            "group_size": rng.choice([1, 3, 50]),
            "with_payload": rng.choice([False, True, ["city"]]),
        }
        ours, theirs = (each.query_points_groups(collection, **asked).groups for each in (client, local))
        assert [group.id for group in ours] == [group.id for group in theirs], f"{number}: {asked}"
        for mine, their in zip(ours, theirs, strict=True):
            found, expected = ([(hit.id, hit.payload or {}) for hit in group.hits] for group in (mine, their))
            assert found == expected, f"{number}: {asked} {mine.id}"
            scores = [[hit.score for hit in group.hits] for group in (mine, their)]
            np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)
        grouped += len(theirs)
    assert grouped > 50, "the filters let hardly anything through, so that nothing was compared"
    row = vectors(np.random.default_rng(1), 1)[0]
    vector = client.query_points_groups(collection, "deep.k", row, with_vectors=True)
    assert all(len(hit.vector) == DIMS for group in vector.groups for hit in group.hits)
    expected = {}
    for point, _, payload, _ in everything(local, collection):
        if elements := payload.get("deep", {}).get("list"):
            expected.setdefault(elements[0]["x"], set()).add(point)
    first = client.query_points_groups(collection, "deep.list[0].x", row, limit=10, group_size=COUNT).groups
    assert {group.id: {hit.id for hit in group.hits} for group in first} == expected


@pytest.mark.parametrize("distance", [models.Distance.EUCLID, models.Distance.COSINE])
def test_prefetches_fusion_and_mmr_are_those_of_the_local_mode(client, collection, distance):
    local = with_local(client, collection, distance)
    rng = random.Random(21)

    def only() -> models.Filter:
        # The local mode joins the filters of query and prefetch member by member, so one member only.
        return models.Filter(must=[a_filter(rng, 1)])

    found = 0
    for number, row in enumerate(vectors(np.random.default_rng(22), 40)):
        target = rng.choice([row, rng.randrange(1, COUNT)])
        asked = {
            "query": target,
            "query_filter": only() if number % 2 else None,
            "limit": rng.choice([1, 4, 20]),
            "offset": rng.choice([None, 3]),
            "with_payload": rng.choice([False, True, ["city"]]),
            "with_vectors": number % 5 == 0,
        }
        if number % 3 == 0:
            mmr = models.Mmr(diversity=rng.choice([0.2, 0.7]), candidates_limit=rng.choice([30, 60]))
            asked["query"] = models.NearestQuery(nearest=target, mmr=mmr)
        if number % 4 != 1:
            other = vectors(np.random.default_rng(100 + number), 1)[0]
            asked["prefetch"] = [
                models.Prefetch(query=rng.choice([other, 12]), limit=rng.choice([5, 40]), filter=only())
                for _ in range(rng.choice([1, 3]))
            ]
            if number % 8 > 4:
                first = asked["prefetch"].pop()
                inner = [models.FusionQuery(fusion="rrf"), models.NearestQuery(nearest=12, mmr=models.Mmr()), row]
                asked["prefetch"].append(models.Prefetch(prefetch=[first], query=inner[number % 3], limit=rng.choice([3, 25])))
            if number % 3 == 1:
                # The local mode treats a large distance as a good score.
                scores = "rrf" if distance is models.Distance.EUCLID else "dbsf"
                kinds = [models.FusionQuery(fusion="rrf"), models.FusionQuery(fusion=scores), models.RrfQuery(rrf=models.Rrf(k=20))]
                asked["query"] = rng.choice(kinds)
        requests = models.QueryRequest(**{QUERY_FIELDS.get(name, name): value for name, value in asked.items()})
        plain = models.QueryRequest(query=row, limit=2)
        batches = [each.query_batch_points(collection, [requests, plain]) for each in (client, local)]
        ours, theirs = (each.query_points(collection, **asked) for each in (client, local))
        for mine, their in [(ours, theirs), *zip(*batches, strict=True)]:
            expected = [(hit.id, hit.payload or {}) for hit in their.points]
            assert [(hit.id, hit.payload or {}) for hit in mine.points] == expected, f"{number}: {asked}"
            np.testing.assert_allclose(
                *([hit.score for hit in each.points] for each in (mine, their)), rtol=1e-4, atol=1e-5
            )
            assert all((hit.vector is None) == (it.vector is None) for hit, it in zip(mine.points, their.points))
        found += len(theirs.points)
    assert found > 100, "the filters let hardly anything through, so that nothing was compared"
    assert refusal(client.query_points, collection, query=models.FusionQuery(fusion="rrf")).status_code == 400
    unranked = models.Prefetch(prefetch=models.Prefetch(query=7))
    problem = refusal(client.query_points, collection, query=9, prefetch=[models.Prefetch(query=7), unranked])
    assert problem.status_code == 400 and b"prefetch[1]" in problem.content
    many = [models.Prefetch(query=8)] * 65
    assert refusal(client.query_points, collection, query=9, prefetch=many).status_code == 400
    mmr = models.NearestQuery(nearest=9, mmr=models.Mmr(candidates_limit=1025))
    assert refusal(client.query_points, collection, query=mmr).status_code == 400
    assert refusal(client.query_points, collection, query=9, prefetch=models.Prefetch(query=mmr)).status_code == 400


@pytest.mark.parametrize("distance", [models.Distance.EUCLID, models.Distance.DOT])
def test_scores_by_several_vectors_are_those_of_the_local_mode(client, collection, distance):
    local = with_local(client, collection, distance)
    one, other, far = vectors(np.random.default_rng(23), 3)
    best = models.RecommendInput(positive=[3, one], negative=[9], strategy=models.RecommendStrategy.BEST_SCORE)
    total = models.RecommendInput(positive=[one], negative=[other, 4], strategy=models.RecommendStrategy.SUM_SCORES)
    discover = models.DiscoverInput(target=7, context=[models.ContextPair(positive=one, negative=11)])
    prefetch = models.Prefetch(query=far, limit=50)
    for query in (
        models.RecommendQuery(recommend=best),
        models.RecommendQuery(recommend=total),
        models.DiscoverQuery(discover=discover),
    ):
        for sources in (None, prefetch):
            asked = {"query": query, "prefetch": sources, "limit": 12, "offset": 2}
            ours, theirs = (each.query_points(collection, **asked).points for each in (client, local))
            assert [hit.id for hit in ours] == [hit.id for hit in theirs], str(asked)
            np.testing.assert_allclose(
                *([hit.score for hit in each] for each in (ours, theirs)), rtol=1e-4, atol=1e-5
            )
    pair = models.ContextPair(positive=one, negative=other)
    scores = [
        {hit.id: hit.score for hit in each.query_points(collection, models.ContextQuery(context=[pair]), limit=COUNT).points}
        for each in (client, local)
    ]
    assert scores[0].keys() == scores[1].keys()
    assert all(scores[0][point] == pytest.approx(score, rel=1e-3, abs=1e-4) for point, score in scores[1].items())


@pytest.mark.parametrize("distance", [models.Distance.EUCLID, models.Distance.COSINE])
def test_matrices_are_those_of_the_local_mode(client, collection, distance):
    compare_matrices(client, with_local(client, collection, distance), collection, COUNT)
    assert refusal(client.search_matrix_pairs, collection, sample=1).status_code == 422


def test_formulas_answer_as_in_the_local_mode(client, collection):
    compare_formulas(client, with_local(client, collection, models.Distance.EUCLID), collection, COUNT)
    absent = models.FormulaQuery(formula="absent")
    error = refusal(client.query_points, collection, absent, prefetch=models.Prefetch(query=7))
    assert error.status_code == 400 and "no value for absent" in error.content.decode(), error


def test_other_collections_are_looked_up_as_in_the_local_mode(client, collection):
    compare_lookups(client, with_local(client, collection, models.Distance.COSINE), collection)


def test_random_samples_are_of_the_points_that_match(client, collection):
    compare_samples(client, with_local(client, collection, models.Distance.COSINE), collection, COUNT)
    random_points = models.SampleQuery(sample=models.Sample.RANDOM)
    within = models.Prefetch(query=7, limit=12)
    chosen = client.query_points(collection, random_points, prefetch=within, limit=COUNT, with_payload=True).points
    nearest = client.query_points(collection, 7, limit=12, with_payload=True).points
    assert {hit.id: hit.payload for hit in chosen} == {hit.id: hit.payload for hit in nearest}
    # Each point is in a sample with the chance of one in ten.
    drawn = [hit.id for _ in range(100) for hit in client.query_points(collection, random_points, limit=20).points]
    assert len(drawn) == 2000
    assert len(set(drawn)) > COUNT - 10, "some points are hardly ever drawn"


def test_groups_of_reranked_hits_are_those_of_the_local_mode(client, collection):
    local = with_local(client, collection, models.Distance.COSINE)
    compare_groups(client, local, collection, COUNT)
    expected = {}
    for point, _, payload, _ in everything(local, collection):
        city = payload.get("city")
        for value in city if isinstance(city, list) else filter(None, [city]):
            expected.setdefault(value, set()).add(point)
    asked = {"query": models.SampleQuery(sample=models.Sample.RANDOM), "group_by": "city", "limit": 10}
    groups = client.query_points_groups(collection, group_size=COUNT, **asked).groups
    assert {group.id: {hit.id for hit in group.hits} for group in groups} == expected
    # A group is the first one with the chance of its part of the points.
    first = [client.query_points_groups(collection, group_size=1, **asked).groups[0].id for _ in range(40)]
    assert len(set(first)) > 1


def rows(client: QdrantClient, name: str) -> list[tuple]:
    """Returns all points, with vectors as texts."""
    return sorted((str(row[0]), str(row[1]), str(row[2])) for row in everything(client, name))


def test_a_snapshot_is_recovered_under_another_name(client, cluster, collection):
    create(client, collection)
    client.create_payload_index(collection, "city", models.PayloadSchemaType.KEYWORD)
    # Many entries, so that snapshots of shards are taken and logs are shortened.
    for start in range(0, COUNT, 5):
        client.upsert(collection, points(5, COUNT)[start : start + 5])
    client.delete(collection, models.PointIdsList(points=[1, 2, 3]))
    before = rows(client, collection)
    view = json.loads(http_call(cluster.nodes["a"].address, "GET", "/cluster/v1/view")[1])
    (known,) = (it for it in view["result"]["collections"] if it["name"] == collection)
    data = cluster.scratch / "store" / "data" / known["id"]
    # A shard may have two while another has none.
    shards = lambda: {found.parents[1] for found in data.glob("snapshots/*/backups/*")}  # noqa: E731
    wait_until("snapshots of all shards", lambda: len(shards()) == 4)
    made = client.create_snapshot(collection)
    copied = cluster.scratch / "store" / "backups" / "cluster" / "shards"
    assert len(list(copied.glob(f"{known['id']}.*/backups/*"))) == 4
    client.upsert(collection, points(6, 50))
    client.delete(collection, models.PointIdsList(points=[100, 101]))
    after = rows(client, collection)
    assert after != before

    copy = f"{collection}-copy"
    assert client.recover_snapshot(copy, made.name)
    assert rows(client, copy) == before
    assert list(client.get_collection(copy).payload_schema) == ["city"]
    assert rows(client, collection) == after
    # The copy is a collection like any other: it takes writes, and can be backed up itself.
    client.upsert(copy, points(7, 30))
    changed = rows(client, copy)
    second = client.create_snapshot(copy)
    assert [it.name for it in client.list_snapshots(copy)] == [second.name]
    taken = refusal(client.recover_snapshot, copy, made.name)
    assert taken.status_code == 409 and "alias" in str(taken.content), taken
    client.delete_collection(copy)
    # Snapshots stay after their collection.
    assert client.recover_snapshot(copy, second.name)
    assert rows(client, copy) == changed

    # Also if the name of the deleted collection has become an alias.
    client.delete_collection(copy)
    client.update_collection_aliases([to(copy, collection)])
    third = client.create_snapshot(copy)
    assert [it.name for it in client.list_snapshots(copy)] == [made.name, second.name, third.name]
    assert client.delete_snapshot(copy, second.name) and client.delete_snapshot(copy, third.name)
    assert [it.name for it in client.list_snapshots(copy)] == [made.name]
    unused = models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=copy))
    client.update_collection_aliases([unused])

    assert [it.name for it in client.list_snapshots(collection)] == [made.name]
    assert client.delete_snapshot(collection, made.name)
    assert client.list_snapshots(collection) == []
    assert refusal(client.recover_snapshot, f"{collection}-3", made.name).status_code == 404
    assert not client.collection_exists(f"{collection}-3")
    assert refusal(client.recover_snapshot, f"{collection}-3", "file:///etc/passwd").status_code == 400
    snapshots = f"/collections/{collection}/snapshots"
    status, body = http_call(cluster.nodes["a"].address, "GET", f"{snapshots}/{made.name}")
    assert status == 404, body
    status, body = http_call(cluster.nodes["b"].address, "POST", f"{snapshots}?wait=false")
    assert (status, json.loads(body)["status"]) == (202, "accepted")
    wait_until("the snapshot without a wait", lambda: len(client.list_snapshots(collection)) == 1)


def test_another_replication_factor_has_no_effect(client, collection):
    create(client, collection)  # with two copies
    for copies in (1, 3):
        params = models.CollectionParamsDiff(replication_factor=copies)
        error = refusal(client.update_collection, collection, collection_params=params)
        assert error.status_code == 501 and "replication_factor" in error.content.decode(), error
    assert client.update_collection(collection, collection_params=models.CollectionParamsDiff(replication_factor=2))
    assert not client.get_collection(collection).warnings
    # Clients that send all of their settings are not refused.
    params = models.CollectionParamsDiff(replication_factor=1, write_consistency_factor=1)
    assert client.update_collection(collection, collection_params=params, metadata={"owner": "x"})
    info = client.get_collection(collection)
    assert info.config.metadata == {"owner": "x"} and info.config.params.replication_factor == 2
    assert any("replication_factor" in warning.message for warning in info.warnings), info.warnings


def test_backups_of_one_server_are_refused(client, cluster, collection):
    create(client, collection)
    for method, path in [
        ("GET", "/v1/backups"),
        ("POST", f"/v1/collections/{collection}/backups"),
        ("POST", f"/v1/collections/{collection}/backups/verify"),
        ("POST", f"/v1/collections/{collection}/clone"),
        ("POST", f"/v1/collections/{collection}/restore"),
    ]:
        status, body = http_call(cluster.nodes["a"].address, method, path)
        assert status == 501 and "/snapshots" in json.loads(body)["error"], (method, path, status, body)


def test_a_damaged_snapshot_makes_no_collection(client, cluster, collection):
    create(client, collection)
    for start in range(0, COUNT, 5):
        client.upsert(collection, points(8, COUNT)[start : start + 5])
    store = cluster.scratch / "store" / "backups" / "cluster"

    def data() -> set[pathlib.Path]:
        return {path for path in store.rglob("*") if path.is_file() and "sets" not in path.parts}

    before = data()
    made = client.create_snapshot(collection)
    damaged = max(data() - before, key=lambda path: path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    copy = f"{collection}-copy"
    refused = refusal(client.recover_snapshot, copy, made.name)
    assert refused.status_code == 500 and "checksum" in str(refused.content), refused.content
    assert not client.collection_exists(copy)
    assert client.count(collection).count == COUNT


def test_a_snapshot_in_an_object_store(tmp_path):
    plans = [NodePlan("a", "root,search,ingest"), NodePlan("b", "search,ingest")]
    cluster = Cluster(plans, tmp_path, tmp_path / "logs", s3=True, snapshot_entries=4)
    try:
        cluster.start()
        client = QdrantClient(url=cluster.nodes["a"].url, timeout=60)
        create(client, "docs")
        for start in range(0, COUNT, 5):
            client.upsert("docs", points(9, COUNT)[start : start + 5])
        before = rows(client, "docs")
        first, second = client.create_snapshot("docs"), client.create_snapshot("docs")
        client.delete_collection("docs")
        client.delete_snapshot("docs", first.name)
        # The second one shares files with the first.
        assert client.recover_snapshot("docs", second.name)
        assert rows(client, "docs") == before
        client.update_collection_aliases([to("live", "docs")])
        assert client.count("live").count == COUNT
        client.close()
    finally:
        cluster.close()
