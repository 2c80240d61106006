"""Queries by several vectors, formulas, samples, lookups and groups. The client's local mode gives the answers."""

import random

import numpy as np
import pytest
from qdrant_client import models
from qdrant_collections import COUNT, DISTANCES, both, params, refusal
from qdrant_comparisons import (
    by_id,
    compare_formulas,
    compare_groups,
    compare_lookups,
    compare_matrices,
    compare_samples,
)
from qdrant_fixtures import collection_fixture, server_fixtures
from qdrant_points import a_filter, scored, vectors

server, client = server_fixtures("qdrant-queries")
collection = collection_fixture()


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
        ours, theirs = by_id(client, collection, COUNT, **asked), by_id(local, collection, COUNT, **asked)
        assert ours.keys() == theirs.keys(), f"{number}: {asked}"
        for point, score in theirs.items():
            assert ours[point] == pytest.approx(score, rel=1e-3, abs=1e-4), f"{number}: {point} {asked}"
        assert list(ours.values()) == sorted(ours.values(), reverse=True), f"{number}: {asked}"
        first = [row[1] for row in scored(client, collection, limit=7, offset=2, **asked)]
        assert first == list(ours.values())[2:9], f"{number}: {asked}"


def test_formulas_answer_as_in_the_local_mode(client, collection):
    compare_formulas(client, both(client, collection, models.Distance.EUCLID), collection, COUNT)
    zero = models.FormulaQuery(formula=models.LnExpression(ln=0.0))
    prefetch = models.Prefetch(query=7)
    assert refusal(client.query_points, collection, query=zero, prefetch=prefetch).status_code == 400
    score = models.FormulaQuery(formula="$score")
    assert refusal(client.query_points, collection, query=score).status_code == 400


def test_other_collections_are_looked_up_as_in_the_local_mode(client, collection):
    compare_lookups(client, both(client, collection, models.Distance.COSINE), collection)


@pytest.mark.parametrize("distance", DISTANCES)
def test_matrices_are_those_of_the_local_mode(client, collection, distance):
    compare_matrices(client, both(client, collection, distance), collection, COUNT)
    assert refusal(client.search_matrix_pairs, collection, sample=1).status_code == 422


def test_random_samples_are_of_the_points_that_match(client, collection):
    compare_samples(client, both(client, collection, models.Distance.COSINE), collection, COUNT)


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
    compare_groups(client, both(client, collection, models.Distance.COSINE), collection, COUNT)
