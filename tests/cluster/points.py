"""Points and queries from a seed, with the expected answers by numpy."""

import dataclasses
import json

import numpy as np

COLLECTION = "kept"
TOP = 10
COLOURS = ["red", "green", "blue"]
# Written points lie so far from every query that no answer to a query has them.
FAR = 1000.0
# Ids of written points. The ids below are those of fixed points.
WRITTEN_FROM = 1_000_000
SCORE_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Answer:
    """One checked answer: `ok`, `failed`, `partial` or `wrong`, and why."""

    verdict: str
    why: str = ""


OK = Answer("ok")


class Points:
    """Fixed points with ids from 0, and queries for them. Distances are Euclidean."""

    def __init__(self, count: int, dims: int, queries: int, seed: int = 35):
        rng = np.random.default_rng(seed)
        self.vectors = rng.standard_normal((count, dims), dtype=np.float32)
        self.queries = rng.standard_normal((queries, dims), dtype=np.float32)
        self.payloads = [{"n": number, "colour": COLOURS[number % len(COLOURS)]} for number in range(count)]
        wide, asked = self.vectors.astype(np.float64), self.queries.astype(np.float64)
        squares = (wide**2).sum(1) + (asked**2).sum(1)[:, None] - 2 * asked @ wide.T
        self.expected = np.argsort(squares, axis=1, kind="stable")[:, :TOP]
        self.distances = np.sqrt(np.take_along_axis(squares, self.expected, axis=1))
        self.bodies = [json.dumps(self.query(number)).encode() for number in range(queries)]

    @property
    def dims(self) -> int:
        return self.vectors.shape[1]

    def query(self, number: int) -> dict:
        return {"query": self.queries[number].tolist(), "limit": TOP, "params": {"exact": True}}

    def checked(self, number: int, status: int, body: bytes) -> Answer:
        """Compares the answer to a query with the expected one."""
        if status != 200:
            return Answer("failed", f"status {status}: {body[:300]!r}")
        answer = json.loads(body)
        result = answer["result"]
        if result.get("partial"):
            return Answer("partial", f"coverage {answer.get('coverage')}")
        found = [point["id"] for point in result["points"]]
        scores = np.array([point["score"] for point in result["points"]])
        if len(found) != TOP or len(set(found)) != TOP:
            return Answer("wrong", f"query {number}: ids {found}")
        if max(found) >= len(self.vectors):
            return Answer("wrong", f"query {number}: a written point is among {found}")
        # Points at almost the same distance may change places.
        true = np.linalg.norm(self.vectors[found].astype(np.float64) - self.queries[number], axis=1)
        expected = self.distances[number]
        if not np.allclose(true, expected, atol=SCORE_TOLERANCE) or not np.allclose(scores, true, atol=SCORE_TOLERANCE):
            return Answer("wrong", f"query {number}: ids {found}, expected {self.expected[number].tolist()}")
        return OK

    def written(self, point: int, value: int) -> dict:
        """Returns a point with a value for an upsert."""
        vector = np.full(self.dims, FAR + point % 97 + value % 89)
        return {"id": point, "vector": vector.tolist(), "payload": {"value": value}}
