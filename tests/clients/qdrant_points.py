"""Random points and filters, and answers in a form for comparison with the client's local mode."""

import random

import numpy as np
from qdrant_client import QdrantClient, models

CITIES = ["Berlin", "Ulm", "Köln", "Bern"]
TAGS = ["a", "b", "c", "d"]
DIMS = 16


def vectors(rng: np.random.Generator, count: int, dims: int = DIMS) -> list[list[float]]:
    return rng.standard_normal((count, dims)).astype(np.float32).tolist()


def payload(rng: random.Random) -> dict:
    """Any field may be absent, null or, if possible, a list."""
    made = {
        "city": rng.choice([*CITIES, None, [CITIES[0], CITIES[1]], []]),
        "n": rng.choice([*range(10), None, [1, 2, 3]]),
        "price": round(rng.uniform(-5, 5), 3),
        "flag": rng.choice([True, False]),
        "tags": rng.sample(TAGS, rng.randrange(len(TAGS))),
        "deep": {"k": rng.randrange(4), "list": [{"x": rng.randrange(3)} for _ in range(rng.randrange(3))]},
    }
    return {field: value for field, value in made.items() if rng.random() < 0.8}


def points(seed: int, count: int, name: str = "") -> list[models.PointStruct]:
    rng = random.Random(seed)
    rows = vectors(np.random.default_rng(seed), count)
    return [
        models.PointStruct(id=number, vector={name: row} if name else row, payload=payload(rng))
        for number, row in enumerate(rows, start=1)
    ]


def condition(rng: random.Random, depth: int):
    field, match = models.FieldCondition, rng.randrange(9 if depth else 8)
    low, words, fields = rng.uniform(-5, 5), TAGS + CITIES, ["city", "n", "tags", "deep.k", "no"]
    return [
        lambda: field(key="city", match=models.MatchValue(value=rng.choice(CITIES))),
        lambda: field(key="n", match=models.MatchAny(any=rng.sample(range(10), 3))),
        lambda: field(key=rng.choice(["tags", "city"]), match=models.MatchExcept(**{"except": rng.sample(words, 2)})),
        lambda: field(key="price", range=models.Range(gte=low, lt=low + 4)),
        lambda: field(key=rng.choice(["n", "deep.k"]), range=models.Range(gt=rng.randrange(3), lte=8)),
        lambda: field(key="deep.list[].x", match=models.MatchValue(value=rng.randrange(3))),
        lambda: models.IsEmptyCondition(is_empty=models.PayloadField(key=rng.choice(fields))),
        lambda: models.HasIdCondition(has_id=rng.sample(range(1, 200), 40)),
        lambda: a_filter(rng, depth - 1),
    ][match]()


def a_filter(rng: random.Random, depth: int = 2) -> models.Filter:
    def some() -> list | None:
        return [condition(rng, depth) for _ in range(rng.randrange(3))] or None

    return models.Filter(must=some(), should=some(), must_not=some())


def scored(client: QdrantClient, collection: str, **query) -> list[tuple]:
    """Returns ids with scores and the other requested fields."""
    found = client.query_points(collection, **query).points
    return [(point.id, point.score, point.payload, point.vector) for point in found]


def assert_alike(ours: list[tuple], theirs: list[tuple], what: str) -> None:
    assert [row[0] for row in ours] == [row[0] for row in theirs], what
    assert [row[2] for row in ours] == [row[2] for row in theirs], what
    np.testing.assert_allclose([row[1] for row in ours], [row[1] for row in theirs], rtol=1e-4, atol=1e-5, err_msg=what)
    for mine, their in zip(ours, theirs, strict=True):
        assert (mine[3] is None) == (their[3] is None), what
        if mine[3] is not None:
            np.testing.assert_allclose(mine[3], their[3], rtol=1e-5, atol=1e-6, err_msg=what)


def everything(client: QdrantClient, collection: str, page: int = 17) -> list[tuple]:
    """Returns all points, read page by page."""
    rows, offset = [], None
    while True:
        found, offset = client.scroll(collection, limit=page, offset=offset, with_vectors=True)
        rows += [(row.id, 0.0, row.payload, row.vector) for row in found]
        if offset is None:
            return rows
