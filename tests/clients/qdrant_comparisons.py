"""Comparisons of a collection with one of the client's local mode that has the same points, with the ids from 1."""

import random

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_points import DIMS, a_filter, assert_alike, points, scored, vectors

FLAG = models.FieldCondition(key="flag", match=models.MatchValue(value=True))


def by_id(client: QdrantClient, collection: str, count: int, **asked) -> dict:
    return {row[0]: row[1] for row in scored(client, collection, limit=count, **asked)}


def compare_formulas(client: QdrantClient, local: QdrantClient, collection: str, count: int) -> None:
    rng = random.Random(41)
    for each in (client, local):
        for number in range(1, count, 2):
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
    decay = models.DecayParamsExpression

    def operand(depth: int):
        made = [
            lambda: rng.uniform(-3, 3),
            lambda: rng.choice(["$score", "$score[0]", "$score[1]", "$score[2]"]),
            lambda: rng.choice(["price", "deep.k"]),
            lambda: FLAG,
            lambda: models.Filter(must_not=[FLAG]),
            lambda: models.HasIdCondition(has_id=rng.sample(range(1, count), 90)),
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
        ours, theirs = by_id(client, collection, count, **asked), by_id(local, collection, count, **asked)
        assert ours.keys() == theirs.keys(), f"{number}: {asked}"
        for point, score in theirs.items():
            assert ours[point] == pytest.approx(score, rel=1e-3, abs=1e-3), f"{number}: {point} {asked}"
        assert list(ours.values()) == sorted(ours.values(), reverse=True), f"{number}: {asked}"


def compare_groups(client: QdrantClient, local: QdrantClient, collection: str, count: int) -> None:
    row, other = vectors(np.random.default_rng(15), 2)
    cheap = models.Filter(must=[models.FieldCondition(key="price", range=models.Range(lt=1.0))])
    prefetch = [models.Prefetch(query=row, limit=5), models.Prefetch(query=other, limit=5, filter=cheap)]
    # Equal values would have no order.
    ranks = [models.SetPayload(payload={"rank": number * 7 % count}, points=[number]) for number in range(1, count + 1)]
    for each in (client, local):
        each.batch_update_points(collection, [models.SetPayloadOperation(set_payload=rank) for rank in ranks])
    by_rank = models.OrderByQuery(order_by=models.OrderBy(key="rank", direction="desc"))
    diverse = models.NearestQuery(nearest=row, mmr=models.Mmr(diversity=0.4))
    few = models.NearestQuery(nearest=row, mmr=models.Mmr(diversity=0.6, candidates_limit=50))
    score = models.FormulaQuery(formula=models.SumExpression(sum=["$score", "price"]), defaults={"price": -1.0})
    for query, sources in (
        (by_rank, None),
        (diverse, None),
        (few, None),
        (models.FusionQuery(fusion="dbsf"), prefetch),
        (models.RrfQuery(rrf=models.Rrf(k=9, weights=[2.0, 1.0])), prefetch),
        (score, prefetch),
        (other, models.Prefetch(query=diverse, limit=count)),
        # The size of the groups, which is 2 or more, multiplies this limit.
        (other, models.Prefetch(query=row, limit=(count + 1) // 2)),
    ):
        for key, size, chosen in (("city", 3, None), ("n", 2, models.Filter(must=[FLAG])), ("deep.k", 4, None)):
            asked = {
                "query": query, "prefetch": sources, "group_by": key, "group_size": size, "query_filter": chosen,
                "limit": 6, "with_payload": False,
            }  # fmt: skip
            ours, theirs = (each.query_points_groups(collection, **asked).groups for each in (client, local))
            assert [group.id for group in ours] == [group.id for group in theirs], str(asked)
            for mine, their in zip(ours, theirs, strict=True):
                assert [hit.id for hit in mine.hits] == [hit.id for hit in their.hits], f"{asked} {mine.id}"
                scores = [[hit.score for hit in group.hits] for group in (mine, their)]
                np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)


def compare_lookups(client: QdrantClient, local: QdrantClient, collection: str) -> None:
    other = f"{collection}-other"
    try:
        for each in (client, local):
            named = {"v": models.VectorParams(size=DIMS, distance=models.Distance.DOT)}
            each.create_collection(other, vectors_config=named)
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


def compare_matrices(client: QdrantClient, local: QdrantClient, collection: str, count: int) -> None:
    keep = models.Filter(must=[FLAG])
    # The sample has all points that match, so that it is the same on both sides.
    for asked in ({"sample": count, "limit": 4}, {"sample": count, "limit": 2, "query_filter": keep}):
        ours, theirs = (each.search_matrix_pairs(collection, **asked).pairs for each in (client, local))
        assert [(pair.a, pair.b) for pair in ours] == [(pair.a, pair.b) for pair in theirs]
        np.testing.assert_allclose([pair.score for pair in ours], [pair.score for pair in theirs], rtol=1e-4)
        ours, theirs = (each.search_matrix_offsets(collection, **asked) for each in (client, local))
        assert (ours.ids, ours.offsets_row, ours.offsets_col) == (theirs.ids, theirs.offsets_row, theirs.offsets_col)
    few = client.search_matrix_offsets(collection, sample=7, limit=3)
    assert (len(few.ids), few.offsets_row) == (7, [row for row in range(7) for _ in range(3)])


def compare_samples(client: QdrantClient, local: QdrantClient, collection: str, count: int) -> None:
    random_points = models.SampleQuery(sample=models.Sample.RANDOM)
    keep = models.Filter(must=[FLAG])
    theirs = by_id(local, collection, count, query=random_points, query_filter=keep)
    assert by_id(client, collection, count, query=random_points, query_filter=keep) == theirs
    first = [row[0] for row in scored(client, collection, query=random_points, limit=20)]
    other = [row[0] for row in scored(client, collection, query=random_points, limit=20)]
    assert len(set(first)) == len(set(other)) == 20
    assert first != other
