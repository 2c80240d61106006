"""Answers over REST are those of qdrant-client's local mode."""

import random

import numpy as np
import pytest
import requests
from qdrant_client import QdrantClient, models
from qdrant_collections import COUNT, DISTANCES, both, params, refusal
from qdrant_fixtures import collection_fixture, server_fixtures
from qdrant_points import a_filter, assert_alike, everything, scored, vectors

server, client = server_fixtures("qdrant-local-mode")
collection = collection_fixture()

# Maximum values of a vector.
SIZE_MAX = 4096


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
        asked = {"query": query, "query_filter": chosen, "limit": limit}
        found = client.query_points(collection, **asked).points
        assert [(point.order_value, point.id) for point in found] == ours
        # The points have no score. The local mode refuses a threshold too, but not by a response.
        assert refusal(client.query_points, collection, **asked, score_threshold=0.5).status_code == 400
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


def test_payloads_changed_in_elements_are_those_of_the_local_mode(client, collection):
    local = both(client, collection, models.Distance.DOT, 20)
    # A value that is no list becomes one without elements.
    for key in ("tags[].x", "tags[0]", "city[0].x", "new[].x", "newer[]", "deep[3].k"):
        for each in (client, local):
            each.set_payload(collection, {"q": 1}, points=[1, 2, 3], key=key)
        assert_alike(everything(client, collection), everything(local, collection), key)
    # A repeated removal of one element would remove the next one too, so that it has no effect.
    for each in (client, local):
        each.delete_payload(collection, ["tags[0]", "deep.list[0].x"], points=list(range(1, 21)))
    assert_alike(everything(client, collection), everything(local, collection), "deleted")


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


@pytest.mark.parametrize("size", [0, SIZE_MAX + 1, 65_536])
def test_a_vector_size_outside_the_limits_is_refused(client, collection, size):
    error = refusal(client.create_collection, collection, vectors_config=params(size=size))
    assert error.status_code == 422, error
    assert f"{size} is not within 1 and {SIZE_MAX}" in error.content.decode()
    assert not client.collection_exists(collection)


@pytest.mark.parametrize("size", [1, SIZE_MAX - 1, SIZE_MAX])
def test_every_permitted_vector_size_can_be_searched(client, collection, size):
    local = QdrantClient(":memory:")
    rows = np.random.default_rng(13).integers(1, 5, (5, size)).astype(float).tolist()
    for each in (client, local):
        each.create_collection(collection, vectors_config=params(models.Distance.DOT, size))
        each.upsert(collection, [models.PointStruct(id=id, vector=row) for id, row in enumerate(rows)])
    best = [each.query_points(collection, query=rows[2], limit=1).points[0].score for each in (client, local)]
    assert best[0] == pytest.approx(best[1], rel=1e-3)


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
