"""Fixtures of the files that test a server of collections with Qdrant's client."""

import pytest
from collections_server import start
from qdrant_client import QdrantClient


def server_fixtures(directory: str):
    """Returns the fixtures `server`, which keeps its collections in a temporary `directory`, and `client`."""

    @pytest.fixture(scope="module")
    def server(tmp_path_factory):
        server = start(tmp_path_factory.mktemp(directory))
        yield server
        assert server.stop() == 0, server.log_text()

    @pytest.fixture(scope="module")
    def client(server):
        client = QdrantClient(url=server.url, timeout=60)
        yield client
        client.close()

    return server, client


def collection_fixture():
    """Returns the fixture `collection`: a name of a collection that is deleted after the test."""

    @pytest.fixture
    def collection(client, request):
        name = request.node.name.replace("[", "-").replace("]", "")
        yield name
        client.delete_collection(name)

    return collection
