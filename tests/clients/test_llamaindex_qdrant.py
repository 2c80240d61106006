"""LlamaIndex's Qdrant store, unmodified: adding, querying, filtering, deleting, and an index on top."""

import numpy as np
from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import AsyncQdrantClient
from qdrant_fixtures import server_fixtures

DIMS = 12
COUNT = 20

server, client = server_fixtures("llamaindex")


def nodes() -> list[TextNode]:
    rows = np.random.default_rng(3).standard_normal((COUNT, DIMS))
    made = []
    for number, row in enumerate(rows):
        source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc-{number % 4}")}
        metadata = {"number": number, "kind": "ab"[number % 2]}
        node = TextNode(text=f"text {number}", metadata=metadata, relationships=source)
        node.id_ = f"00000000-0000-0000-0000-{number:012d}"
        node.embedding = row.tolist()
        made.append(node)
    return made


def where(*conditions: tuple, condition=FilterCondition.AND) -> MetadataFilters:
    filters = [MetadataFilter(key=key, operator=operator, value=value) for key, operator, value in conditions]
    return MetadataFilters(filters=filters, condition=condition)


def test_the_store_alone(client):
    store = QdrantVectorStore("store", client=client)
    made = nodes()
    assert store.add(made) == [node.node_id for node in made]
    query = made[7].embedding

    def numbers(**asked) -> list[int]:
        found = store.query(VectorStoreQuery(query_embedding=query, similarity_top_k=COUNT, **asked))
        assert found.similarities == sorted(found.similarities, reverse=True)
        return [node.metadata["number"] for node in found.nodes]

    rows = np.array([node.embedding for node in made])
    cosines = rows @ np.array(query) / np.linalg.norm(rows, axis=1)
    assert numbers() == np.argsort(-cosines).tolist()
    assert sorted(numbers(filters=where(("number", FilterOperator.GTE, 17)))) == [17, 18, 19]
    assert sorted(numbers(filters=where(("number", FilterOperator.LT, 5), ("kind", FilterOperator.EQ, "b")))) == [1, 3]
    two, nine = ("number", FilterOperator.IN, [2, 4]), ("number", FilterOperator.EQ, 9)
    assert sorted(numbers(filters=where(two, nine, condition=FilterCondition.OR))) == [2, 4, 9]
    assert sorted(numbers(filters=where(("kind", FilterOperator.NE, "a")))) == list(range(1, COUNT, 2))
    assert sorted(numbers(doc_ids=["doc-1"])) == list(range(1, COUNT, 4))
    assert sorted(numbers(node_ids=[made[3].node_id, made[5].node_id])) == [3, 5]
    assert [node.metadata["number"] for node in store.get_nodes(node_ids=[made[3].node_id])] == [3]
    store.delete("doc-1")
    store.delete_nodes([made[0].node_id])
    assert sorted(numbers()) == [number for number in range(1, COUNT) if number % 4 != 1]
    store.clear()
    assert not client.collection_exists("store")


def test_an_index_on_the_store(client):
    store = QdrantVectorStore("index", client=client)
    context = StorageContext.from_defaults(vector_store=store)
    documents = [Document(text=f"number {number}", doc_id=f"d{number}", metadata={"n": number}) for number in range(6)]
    embedding = MockEmbedding(embed_dim=DIMS)
    index = VectorStoreIndex.from_documents(documents, storage_context=context, embed_model=embedding)
    retriever = index.as_retriever(similarity_top_k=10)
    assert sorted(found.metadata["n"] for found in retriever.retrieve("anything")) == list(range(6))
    index.delete_ref_doc("d2")
    again = VectorStoreIndex.from_vector_store(QdrantVectorStore("index", client=client), embed_model=embedding)
    found = again.as_retriever(similarity_top_k=10).retrieve("anything")
    assert sorted(node.metadata["n"] for node in found) == [0, 1, 3, 4, 5]


async def test_the_asynchronous_client(server):
    client = AsyncQdrantClient(url=server.url, timeout=60)
    store = QdrantVectorStore("later", aclient=client)
    made = nodes()
    await store.async_add(made)
    found = await store.aquery(VectorStoreQuery(query_embedding=made[2].embedding, similarity_top_k=1))
    assert [node.metadata["number"] for node in found.nodes] == [2]
    await store.adelete("doc-2")
    found = await store.aquery(VectorStoreQuery(query_embedding=made[2].embedding, similarity_top_k=COUNT))
    assert len(found.nodes) == COUNT * 3 // 4
    await client.close()
