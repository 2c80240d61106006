"""LangChain's Qdrant store, unmodified: the flow of its own documentation."""

import hashlib

import numpy as np
import pytest
from collections_server import start
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_qdrant import QdrantVectorStore
from qdrant_client import QdrantClient, models

DIMS = 24
TEXTS = ["the cat sleeps", "a dog barks", "rivers flow to the sea", "the sea is deep", "cats and dogs"]


class Words(Embeddings):
    """Embeds a text as the sum of its words' directions, each derived from the word's hash."""

    def embed_query(self, text: str) -> list[float]:
        total = np.zeros(DIMS)
        for word in text.lower().split():
            seed = int.from_bytes(hashlib.sha256(word.rstrip("s").encode()).digest()[:4], "little")
            total += np.random.default_rng(seed).standard_normal(DIMS)
        return total.tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = start(tmp_path_factory.mktemp("langchain"))
    yield server
    assert server.stop() == 0, server.log_text()


def number_is(number: int) -> models.Filter:
    match = models.MatchValue(value=number)
    return models.Filter(must=[models.FieldCondition(key="metadata.number", match=match)])


def store(server, name: str, **options) -> QdrantVectorStore:
    metadatas = [{"number": number, "even": number % 2 == 0} for number in range(len(TEXTS))]
    return QdrantVectorStore.from_texts(
        TEXTS, Words(), metadatas=metadatas, url=server.url, prefer_grpc=False, collection_name=name, **options
    )


OPTIONS = {"plain": {}, "named": {"vector_name": "dense"}, "euclid": {"distance": models.Distance.EUCLID}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_the_basic_flow(server, options, request):
    kept = store(server, f"flow-{request.node.callspec.id}", **options)
    found = kept.similarity_search("the cat sleeps", k=2)
    assert found[0].page_content == "the cat sleeps"
    assert found[0].metadata["number"] == 0
    assert [it.page_content for it in kept.similarity_search("the cat sleeps", k=5, filter=number_is(3))] == [TEXTS[3]]
    scored = kept.similarity_search_with_score("a dog barks", k=3)
    best_first = sorted((score for _, score in scored), reverse="distance" not in options)
    assert [score for _, score in scored] == best_first
    added = kept.add_documents([Document(page_content="mountains are high", metadata={"number": 5})], ids=[10])
    assert added == [10]
    assert kept.similarity_search("high mountains", k=1)[0].metadata["number"] == 5
    assert [it.page_content for it in kept.get_by_ids([10])] == ["mountains are high"]
    assert kept.delete([10])
    assert not kept.get_by_ids([10])
    assert kept.max_marginal_relevance_search("the sea", k=3, fetch_k=5)[0].page_content in TEXTS[2:4]
    assert kept.as_retriever(search_kwargs={"k": 1}).invoke("a dog barks")[0].page_content == "a dog barks"


def test_an_existing_collection_of_another_shape_is_refused(server):
    store(server, "existing")
    again = QdrantVectorStore.from_existing_collection("existing", embedding=Words(), url=server.url)
    assert again.similarity_search("rivers flow", k=1)[0].page_content == TEXTS[2]
    client = QdrantClient(url=server.url, timeout=60)
    client.create_collection("narrow", vectors_config=models.VectorParams(size=3, distance=models.Distance.COSINE))
    with pytest.raises(Exception, match="dimension"):
        QdrantVectorStore.from_existing_collection("narrow", embedding=Words(), url=server.url)
