"""Filters of texts, areas, objects of lists and paths, compared with the local mode of qdrant-client."""

import random

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse
from qdrant_fixtures import server_fixtures
from qdrant_points import vectors

DIMS = 4
COUNT = 150
WORDS = ["Red", "red", "fox", "FOX", "Köln", "straße", "x1", "lazy_dog", "c++", "the"]

server, client = server_fixtures("filters")


def text(rng: random.Random) -> str:
    return rng.choice([" ", ", ", "-"]).join(rng.choices(WORDS, k=rng.randrange(6)))


def place(rng: random.Random) -> dict:
    return {"lat": round(rng.uniform(-60, 60), 2), "lon": round(rng.uniform(-180, 180), 2)}


def payload(rng: random.Random) -> dict:
    made = {
        "text": rng.choice([text(rng), [text(rng), text(rng)], None, 7]),
        "place": rng.choice([place(rng), [place(rng), place(rng)], None, {"lat": 1.0}, "Ulm"]),
        "rows": [{"x": rng.randrange(3), "y": rng.choice([1, 2, [1, 2]])} for _ in range(rng.randrange(4))],
        "one": {"x": rng.randrange(3), "rows": [{"z": rng.randrange(3)} for _ in range(rng.randrange(3))]},
        "a.b": {"c d": rng.randrange(3)},
        "grid": [[rng.randrange(3) for _ in range(3)] for _ in range(rng.randrange(3))],
    }
    return {field: value for field, value in made.items() if rng.random() < 0.85}


@pytest.fixture(scope="module")
def both(client):
    """The same collection here and in the local mode."""
    local, rng = QdrantClient(":memory:"), random.Random(21)
    rows = vectors(np.random.default_rng(21), COUNT, DIMS)
    points = [models.PointStruct(id=at, vector=row, payload=payload(rng)) for at, row in enumerate(rows, start=1)]
    for each in (client, local):
        each.create_collection("filters", vectors_config=models.VectorParams(size=DIMS, distance=models.Distance.DOT))
        each.upsert("filters", points)
    yield client, local
    client.delete_collection("filters")


def ring(rng: random.Random) -> models.GeoLineString:
    corners = [models.GeoPoint(**place(rng)) for _ in range(rng.randrange(3, 7))]
    return models.GeoLineString(points=[*corners, corners[0]])


def matching(rng: random.Random):
    query = text(rng)
    return rng.choice(
        [
            models.MatchText(text=query),
            models.MatchTextAny(text_any=query),
            models.MatchPhrase(phrase=" ".join(rng.choices(WORDS, k=2))),
            models.MatchPrefix(prefix=rng.choice(WORDS)[:2]),
            models.MatchSubstring(substring=rng.choice(["red", "ed", "x, ", "+", ""])),
        ]
    )


def area(rng: random.Random) -> models.FieldCondition:
    one, other = place(rng), place(rng)
    north, south = sorted((one["lat"], other["lat"]), reverse=True)
    box = models.GeoBoundingBox(
        top_left=models.GeoPoint(lat=north, lon=one["lon"]), bottom_right=models.GeoPoint(lat=south, lon=other["lon"])
    )
    radius = models.GeoRadius(center=models.GeoPoint(**one), radius=rng.uniform(1e5, 9e6))
    polygon = models.GeoPolygon(exterior=ring(rng), interiors=rng.choice([None, [ring(rng)]]))
    kind, value = rng.choice([("geo_bounding_box", box), ("geo_radius", radius), ("geo_polygon", polygon)])
    return models.FieldCondition(key="place", **{kind: value})


def element(rng: random.Random) -> models.NestedCondition:
    def field(key: str) -> models.FieldCondition:
        return models.FieldCondition(key=key, match=models.MatchValue(value=rng.randrange(3)))

    key, inner = rng.choice([("rows", ["x", "y"]), ("rows[]", ["x", "y"]), ("one.rows", ["z"]), ("one", ["x"])])
    chosen = models.Filter(must=[field(name) for name in inner], must_not=rng.choice([None, [field("x")]]))
    return models.NestedCondition(nested=models.Nested(key=key, filter=chosen))


PATHS = ['"a.b"."c d"', "rows[0].x", "rows[1].y", "rows[7].x", "grid[0]", "grid[1][2]", "grid[][0]"]
PATHS += ["one.rows[0].z", '"one".x', "grid[]", "grid[][]"]


def by_path(rng: random.Random):
    path = rng.choice(PATHS)
    if rng.random() < 0.3:
        return models.IsEmptyCondition(is_empty=models.PayloadField(key=path))
    return models.FieldCondition(key=path, match=models.MatchValue(value=rng.randrange(3)))


def by_vector(rng: random.Random) -> models.HasVectorCondition:
    return models.HasVectorCondition(has_vector=rng.choice(["", "other"]))


def by_slice(rng: random.Random) -> models.SliceCondition:
    total = rng.randrange(1, 4)
    return models.SliceCondition(slice=models.Slice(total=total, index=rng.randrange(total)))


CONDITIONS = {
    "texts": lambda rng: models.FieldCondition(key="text", match=matching(rng)),
    "areas": area,
    "elements": element,
    "paths": by_path,
    "vectors": by_vector,
    "slices": by_slice,
}


def ids(client, chosen: models.Filter) -> list[int]:
    return [row.id for row in client.scroll("filters", scroll_filter=chosen, limit=COUNT)[0]]


@pytest.mark.parametrize("kind", [*CONDITIONS, "all"])
def test_conditions_answer_as_the_local_mode_does(both, kind):
    client, local = both
    rng = random.Random(kind)
    found = 0
    for number in range(80):

        def some(most: int) -> list | None:
            make = rng.choice(list(CONDITIONS.values())) if kind == "all" else CONDITIONS[kind]
            return [make(rng) for _ in range(rng.randrange(most))] or None

        chosen = models.Filter(must=some(3), should=some(3), must_not=some(2))
        expected = ids(local, chosen)
        assert ids(client, chosen) == expected, f"{number}: {chosen}"
        assert client.count("filters", count_filter=chosen).count == len(expected), f"{number}: {chosen}"
        found += len(expected)
    assert found > 80, "the filters let hardly anything through, so that nothing was compared"


def test_parts_of_payloads_have_paths_as_in_the_local_mode(both):
    rng = random.Random(5)
    for _ in range(40):
        paths = rng.sample(PATHS, 2)
        for part in (paths, models.PayloadSelectorExclude(exclude=paths)):
            ours, theirs = (each.scroll("filters", limit=COUNT, with_payload=part)[0] for each in both)
            assert [row.payload for row in ours] == [row.payload for row in theirs], part


def test_a_text_index_says_how_texts_are_split(client):
    client.create_collection("split", vectors_config=models.VectorParams(size=2, distance=models.Distance.DOT))
    try:
        texts = ["C++ in depth", "Plain C", "depths of the sea"]
        rows = enumerate(texts, start=1)
        client.upsert("split", [models.PointStruct(id=at, vector=[1, 1], payload={"t": each}) for at, each in rows])

        def count(query: str) -> int:
            condition = models.FieldCondition(key="t", match=models.MatchText(text=query))
            return client.count("split", count_filter=models.Filter(must=[condition])).count

        def index(**params) -> None:
            client.create_payload_index("split", "t", models.TextIndexParams(type="text", **params))

        assert (count("c"), count("depth")) == (2, 1)
        index(tokenizer="whitespace")
        assert (count("c"), count("C++")) == (1, 1)
        index(tokenizer="prefix", min_token_len=3)
        assert (count("DEPTH"), count("de")) == (2, 0)
        index(tokenizer="word", lowercase=False)
        assert (count("plain"), count("Plain")) == (0, 1)
        index(tokenizer="multilingual")
        with pytest.raises(UnexpectedResponse) as caught:
            count("c")
        assert caught.value.status_code == 501
    finally:
        client.delete_collection("split")


def test_long_texts_and_wrong_areas_are_refused(both):
    client, _ = both
    corner = models.GeoPoint(lat=0, lon=0)
    open_ring = models.GeoLineString(points=[corner, corner, corner, models.GeoPoint(lat=1, lon=1)])
    for field, status in (
        ({"match": models.MatchText(text="x" * 5000)}, 422),
        ({"match": models.MatchPhrase(phrase="x " * 300)}, 422),
        ({"geo_radius": models.GeoRadius(center=models.GeoPoint(lat=91, lon=0), radius=1)}, 422),
        ({"geo_radius": models.GeoRadius(center=corner, radius=-1)}, 422),
        ({"geo_polygon": models.GeoPolygon(exterior=open_ring)}, 422),
    ):
        with pytest.raises(UnexpectedResponse) as caught:
            ids(client, models.Filter(must=[models.FieldCondition(key="place", **field)]))
        assert caught.value.status_code == status, field
    for path in ('"a', "[0]", 'a."b"c', "a[", "a..b"):
        with pytest.raises(UnexpectedResponse) as caught:
            ids(client, models.Filter(must=[models.FieldCondition(key=path, match=models.MatchValue(value=1))]))
        assert caught.value.status_code == 400, path
    no_condition = models.Filter(min_should=models.MinShould(conditions=[], min_count=0))
    with pytest.raises(UnexpectedResponse) as caught:
        ids(client, no_condition)
    assert caught.value.status_code == 422
