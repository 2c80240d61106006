"""Collections with one vector a point, in a server and in the client's local mode."""

import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse
from qdrant_points import DIMS, points

DISTANCES = [models.Distance.COSINE, models.Distance.DOT, models.Distance.EUCLID]
COUNT = 200


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
