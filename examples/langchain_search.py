"""LangChain: a vector store in Millpond, with embeddings that a model in Millpond computes.

LangChain's Qdrant store works unchanged, since Millpond answers Qdrant's REST interface.

    pip install langchain-qdrant tokenizers and the packages of huggingface_encoder.py
    python examples/langchain_search.py
"""

import pathlib
import tempfile

from huggingface_encoder import MODEL, Sentences, export
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_qdrant import QdrantVectorStore
from qdrant_client import models as qdrant
from server import publish, serving


class ServedEmbeddings(Embeddings):
    """Embeddings of the model that the server runs."""

    def __init__(self, url: str):
        self.sentences = Sentences(url)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.sentences.encode(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


DOCUMENTS = [
    Document("The dam holds back the water above the mill.", metadata={"topic": "mill"}),
    Document("Flour is ground between two round stones.", metadata={"topic": "mill"}),
    Document("Rye bread keeps longer than wheat bread.", metadata={"topic": "bread"}),
    Document("Let the dough rise overnight in a cool place.", metadata={"topic": "bread"}),
    Document("The heron waits for fish at the edge of the pond.", metadata={"topic": "birds"}),
]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        file, models = pathlib.Path(scratch, "minilm.onnx"), pathlib.Path(scratch, "models")
        export(file)
        publish(file, models / MODEL)
        with serving(models) as url:
            store = QdrantVectorStore.from_documents(
                DOCUMENTS, ServedEmbeddings(url), url=url, prefer_grpc=False, collection_name="notes"
            )
            for question in ("How is grain turned into powder?", "Which animal hunts here?"):
                [(best, score)] = store.similarity_search_with_score(question, k=1)
                print(f"{question}\n  {score:.2f} {best.page_content}")
            topic = qdrant.FieldCondition(key="metadata.topic", match=qdrant.MatchValue(value="bread"))
            retriever = store.as_retriever(search_kwargs={"k": 2, "filter": qdrant.Filter(must=[topic])})
            print("only bread:")
            for found in retriever.invoke("What should I bake?"):
                print(f"  {found.page_content}")


if __name__ == "__main__":
    main()
