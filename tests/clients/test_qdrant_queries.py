"""Queries by several vectors, formulas, samples, lookups and groups. The client's local mode gives the answers."""

import random

import numpy as np
import pytest
from collections_server import start
from qdrant_client import QdrantClient, models
from qdrant_points import a_filter, assert_alike, points, scored, vectors
from test_qdrant import COUNT, DISTANCES, both, params, refusal


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = start(tmp_path_factory.mktemp("qdrant-queries"))
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


def by_id(client, collection, **asked) -> dict:
    return {row[0]: row[1] for row in scored(client, collection, limit=COUNT, **asked)}


@pytest.mark.parametrize("distance", DISTANCES)
def test_scores_by_several_vectors_are_those_of_the_local_mode(client, collection, distance):
    local = both(client, collection, distance)
    rng = random.Random(21)
    rows = vectors(np.random.default_rng(21), 200)
    # Without prefetches, and over the hits of one.
    prefetch = models.Prefetch(query=rows[0], limit=60)

    def example():
        return rng.choice([rng.randrange(1, COUNT), rng.choice(rows)])

    def examples(least):
        return [example() for _ in range(rng.randrange(least, 4))]

    def pairs(least):
        count = rng.randrange(least, 4)
        return [models.ContextPair(positive=example(), negative=example()) for _ in range(count)]

    for number in range(60):
        strategy = rng.choice([models.RecommendStrategy.BEST_SCORE, models.RecommendStrategy.SUM_SCORES])
        # One of the lists may be empty.
        positive = examples(0)
        negative = examples(0 if positive else 1)
        recommend = models.RecommendInput(positive=positive, negative=negative, strategy=strategy)
        asked = {
            "query": rng.choice(
                [
                    models.RecommendQuery(recommend=recommend),
                    models.DiscoverQuery(discover=models.DiscoverInput(target=example(), context=pairs(0))),
                    models.ContextQuery(context=pairs(1)),
                ]
            ),
            "query_filter": a_filter(rng, 1) if number % 3 == 0 else None,
            "prefetch": prefetch if number % 4 == 0 else None,
        }
        # Many points have the same score of a context, so that their order says nothing.
        ours, theirs = by_id(client, collection, **asked), by_id(local, collection, **asked)
        assert ours.keys() == theirs.keys(), f"{number}: {asked}"
        for point, score in theirs.items():
            assert ours[point] == pytest.approx(score, rel=1e-3, abs=1e-4), f"{number}: {point} {asked}"
        assert list(ours.values()) == sorted(ours.values(), reverse=True), f"{number}: {asked}"
        first = [row[1] for row in scored(client, collection, limit=7, offset=2, **asked)]
        assert first == list(ours.values())[2:9], f"{number}: {asked}"


def test_formulas_answer_as_in_the_local_mode(client, collection):
    local = both(client, collection, models.Distance.EUCLID)
    rng = random.Random(41)
    for each in (client, local):
        for number in range(1, COUNT, 2):
            place = {"lon": number / 2, "lat": number / 3 - 30}
            more = {"place": place, "day": f"2024-{number % 12 + 1:02}-{number % 28 + 1:02}T10:00:00Z"}
            each.set_payload(collection, more, points=[number])
    row, other = vectors(np.random.default_rng(42), 2)
    defaults = {
        "n": 1, "price": -1.5, "day": "2024-06-15T00:00:00Z", "$score[1]": 7.5, "deep.k": 2,
        "place": {"lon": 13.4, "lat": 52.5},
    }  # fmt: skip
    tenth = models.MultExpression(mult=[0.1, "price"])
    square = models.PowExpression(pow=models.PowParams(base="price", exponent=2))
    days = models.DivExpression(
        div=models.DivParams(left=models.DatetimeKeyExpression(datetime_key="day"), right=86400.0)
    )
    since = models.SumExpression(sum=[days, -19000.0])
    origin = models.GeoPoint(lon=2.35, lat=48.85)
    far = models.GeoDistance(geo_distance=models.GeoDistanceParams(origin=origin, to="place"))
    flag = models.FieldCondition(key="flag", match=models.MatchValue(value=True))
    decay = models.DecayParamsExpression

    def operand(depth: int):
        made = [
            lambda: rng.uniform(-3, 3),
            lambda: rng.choice(["$score", "$score[0]", "$score[1]", "$score[2]"]),
            lambda: rng.choice(["price", "deep.k"]),
            lambda: flag,
            lambda: models.Filter(must_not=[flag]),
            lambda: models.HasIdCondition(has_id=rng.sample(range(1, COUNT), 90)),
            lambda: models.LinDecayExpression(lin_decay=decay(x=far, scale=3e6)),
            lambda: models.ExpDecayExpression(exp_decay=decay(x="price", target="deep.k", midpoint=0.3)),
            lambda: models.GaussDecayExpression(gauss_decay=decay(x=since, target=900.0, scale=60.0)),
            lambda: models.LnExpression(ln=models.SumExpression(sum=[1.0, square])),
            lambda: models.ExpExpression(exp=tenth),
            lambda: models.SumExpression(sum=[operand(depth - 1) for _ in range(rng.randrange(1, 4))]),
            lambda: models.MultExpression(mult=[operand(depth - 1) for _ in range(rng.randrange(1, 3))]),
            lambda: models.NegExpression(neg=operand(depth - 1)),
            lambda: models.SqrtExpression(sqrt=models.AbsExpression(abs=operand(depth - 1))),
            lambda: models.DivExpression(
                div=models.DivParams(left=operand(depth - 1), right="deep.k", by_zero_default=0.25)
            ),
        ]
        return rng.choice(made if depth else made[:11])()

    cheap = models.Filter(must=[models.FieldCondition(key="price", range=models.Range(lt=2.0))])
    prefetch = [models.Prefetch(query=row, limit=50), models.Prefetch(query=other, limit=40, filter=cheap)]
    for number in range(60):
        query = models.FormulaQuery(formula=operand(3), defaults=defaults)
        asked = {"query": query, "prefetch": prefetch, "query_filter": a_filter(rng, 1) if number % 3 == 0 else None}
        # Points of equal scores have no order.
        ours, theirs = by_id(client, collection, **asked), by_id(local, collection, **asked)
        assert ours.keys() == theirs.keys(), f"{number}: {asked}"
        for point, score in theirs.items():
            assert ours[point] == pytest.approx(score, rel=1e-3, abs=1e-3), f"{number}: {point} {asked}"
        assert list(ours.values()) == sorted(ours.values(), reverse=True), f"{number}: {asked}"
    zero = models.FormulaQuery(formula=models.LnExpression(ln=0.0))
    assert refusal(client.query_points, collection, query=zero, prefetch=prefetch).status_code == 400
    assert refusal(client.query_points, collection, query=query).status_code == 400


def test_other_collections_are_looked_up_as_in_the_local_mode(client, collection):
    other = f"{collection}-other"
    local = both(client, collection, models.Distance.COSINE)
    try:
        for each in (client, local):
            each.create_collection(other, vectors_config={"v": params(models.Distance.DOT)})
            each.upsert(other, points(31, 8, "v"))
        lookup = models.LookupLocation(collection=other, vector="v")
        best = models.RecommendStrategy.BEST_SCORE
        recommend = models.RecommendInput(positive=[3, 5], negative=[2], strategy=best)
        average = models.RecommendInput(positive=[3, 5], negative=[2])
        own = models.LookupLocation(collection=collection)
        for asked in (
            {"query": 7, "lookup_from": lookup},
            {"query": 7, "lookup_from": own},
            {"query": models.RecommendQuery(recommend=recommend), "lookup_from": lookup},
            {"query": models.RecommendQuery(recommend=average), "lookup_from": lookup},
            {"query": 4, "prefetch": models.Prefetch(query=7, limit=30, lookup_from=lookup)},
        ):
            assert_alike(scored(client, collection, **asked), scored(local, collection, **asked), str(asked))
        exclude = models.PayloadSelectorExclude(exclude=["tags"])
        for with_lookup in (
            other,
            models.WithLookup(collection=other, with_payload=["city"], with_vectors=True),
            models.WithLookup(collection=other, with_payload=exclude),
        ):
            asked = {"group_by": "n", "query": 7, "limit": 10, "with_lookup": with_lookup}
            ours, theirs = (each.query_points_groups(collection, **asked).groups for each in (client, local))
            assert [group.id for group in ours] == [group.id for group in theirs]
            assert any(group.lookup for group in theirs)
            for mine, their in zip(ours, theirs, strict=True):
                assert (mine.lookup is None) == (their.lookup is None), mine.id
                if their.lookup is not None:
                    assert (mine.lookup.id, mine.lookup.payload) == (their.lookup.id, their.lookup.payload)
                    assert (mine.lookup.vector is None) == (their.lookup.vector is None)
    finally:
        client.delete_collection(other)


@pytest.mark.parametrize("distance", DISTANCES)
def test_matrices_are_those_of_the_local_mode(client, collection, distance):
    local = both(client, collection, distance)
    keep = models.Filter(must=[models.FieldCondition(key="flag", match=models.MatchValue(value=True))])
    # The sample has all points that match, so that it is the same on both sides.
    for asked in ({"sample": COUNT, "limit": 4}, {"sample": COUNT, "limit": 2, "query_filter": keep}):
        ours, theirs = (each.search_matrix_pairs(collection, **asked).pairs for each in (client, local))
        assert [(pair.a, pair.b) for pair in ours] == [(pair.a, pair.b) for pair in theirs]
        np.testing.assert_allclose([pair.score for pair in ours], [pair.score for pair in theirs], rtol=1e-4)
        ours, theirs = (each.search_matrix_offsets(collection, **asked) for each in (client, local))
        assert (ours.ids, ours.offsets_row, ours.offsets_col) == (theirs.ids, theirs.offsets_row, theirs.offsets_col)
    few = client.search_matrix_offsets(collection, sample=7, limit=3)
    assert (len(few.ids), few.offsets_row) == (7, [row for row in range(7) for _ in range(3)])
    assert refusal(client.search_matrix_pairs, collection, sample=1).status_code == 422


def test_random_samples_are_of_the_points_that_match(client, collection):
    local = both(client, collection, models.Distance.COSINE)
    random_points = models.SampleQuery(sample=models.Sample.RANDOM)
    keep = models.Filter(must=[models.FieldCondition(key="flag", match=models.MatchValue(value=True))])
    theirs = by_id(local, collection, query=random_points, query_filter=keep)
    assert by_id(client, collection, query=random_points, query_filter=keep) == theirs
    first = [row[0] for row in scored(client, collection, query=random_points, limit=20)]
    other = [row[0] for row in scored(client, collection, query=random_points, limit=20)]
    assert len(set(first)) == len(set(other)) == 20
    assert first != other


def test_candidates_of_examples_come_from_the_index(client, collection):
    client.create_collection(collection, vectors_config=params(models.Distance.EUCLID, 4))
    rows = np.random.default_rng(22).standard_normal((12_000, 4)).astype(np.float32)
    client.upload_collection(collection, vectors=rows, ids=range(1, 12_001), batch_size=2000)
    best = models.RecommendStrategy.BEST_SCORE
    recommend = models.RecommendInput(positive=[1, 2, 3], negative=[4], strategy=best)
    pair = models.ContextPair(positive=5, negative=6)
    for query in (
        models.RecommendQuery(recommend=recommend),
        models.DiscoverQuery(discover=models.DiscoverInput(target=5, context=[pair])),
    ):
        exact = models.SearchParams(exact=True)
        ours, all_compared = (
            scored(client, collection, query=query, limit=10, search_params=chosen) for chosen in (None, exact)
        )
        assert ours == all_compared


def test_groups_of_reranked_hits_are_those_of_the_local_mode(client, collection):
    local = both(client, collection, models.Distance.COSINE)
    row, other = vectors(np.random.default_rng(15), 2)
    cheap = models.Filter(must=[models.FieldCondition(key="price", range=models.Range(lt=1.0))])
    prefetch = [models.Prefetch(query=row, limit=5), models.Prefetch(query=other, limit=5, filter=cheap)]
    # Equal values would have no order.
    for each in (client, local):
        for number in range(1, COUNT + 1):
            each.set_payload(collection, {"rank": number * 7 % COUNT}, points=[number])
    by_rank = models.OrderByQuery(order_by=models.OrderBy(key="rank", direction="desc"))
    diverse = models.NearestQuery(nearest=row, mmr=models.Mmr(diversity=0.4))
    few = models.NearestQuery(nearest=row, mmr=models.Mmr(diversity=0.6, candidates_limit=50))
    score = models.FormulaQuery(formula=models.SumExpression(sum=["$score", "price"]), defaults={"price": -1.0})
    keep = models.Filter(must=[models.FieldCondition(key="flag", match=models.MatchValue(value=True))])
    for query, sources in (
        (by_rank, None),
        (diverse, None),
        (few, None),
        (models.FusionQuery(fusion="dbsf"), prefetch),
        (models.RrfQuery(rrf=models.Rrf(k=9, weights=[2.0, 1.0])), prefetch),
        (score, prefetch),
        (other, models.Prefetch(query=diverse, limit=COUNT)),
    ):
        for key, size, chosen in (("city", 3, None), ("n", 2, keep), ("deep.k", 4, None)):
            asked = {
                "query": query, "prefetch": sources, "group_by": key, "group_size": size, "query_filter": chosen,
                "limit": 6, "with_payload": False,
            }  # fmt: skip
            ours, theirs = (each.query_points_groups(collection, **asked).groups for each in (client, local))
            assert [group.id for group in ours] == [group.id for group in theirs], str(asked)
            for mine, their in zip(ours, theirs, strict=True):
                assert [hit.id for hit in mine.hits] == [hit.id for hit in their.hits], f"{asked} {mine.id}"
                np.testing.assert_allclose(
                    [hit.score for hit in mine.hits], [hit.score for hit in their.hits], rtol=1e-4, atol=1e-5
                )
