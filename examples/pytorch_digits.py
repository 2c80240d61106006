"""PyTorch: train a network, then serve it in two ways.

TorchScript: `torch.jit.save` writes models/NAME/1/model.pt, which the LibTorch engine runs (`make torch`).
ONNX: `torch.onnx.export` uses torch.export; `millpond publish` makes a version of the file, which ONNX Runtime runs.

    pip install torch onnx onnxscript scikit-learn requests
    python examples/pytorch_digits.py
"""

import logging
import pathlib
import tempfile
import warnings

import numpy as np
import requests
import torch
from server import publish, serving
from sklearn.datasets import load_digits

logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
train, test = slice(0, 1400), slice(1400, None)

network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
for _ in range(150):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(network(images[train]), labels[train]).backward()
    optimizer.step()
network.eval()

# TorchScript does not declare its tensors. This file beside the versions names them for clients.
SIGNATURE = """
[signature]
[[signature.inputs]]
name = "image"
dtype = "float32"
shape = [-1, 64]
[[signature.outputs]]
name = "scores"
dtype = "float32"
shape = [-1, 10]
"""


def write_torchscript(model: pathlib.Path) -> None:
    (model / "1").mkdir(parents=True)
    torch.jit.save(torch.jit.trace(network, images[:2]), model / "1/model.pt")
    (model / "millpond.toml").write_text(SIGNATURE)


def write_onnx(file: pathlib.Path) -> None:
    # The first axis is free, so that one request may have any number of images and requests can be merged.
    axes = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(
        network, (images[:2],), file, dynamo=True, dynamic_shapes=axes, input_names=["image"],
        output_names=["scores"], external_data=False, verbose=False,
    )  # fmt: skip


def classify(url: str, model: str) -> np.ndarray:
    rows = images[test]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(rows.shape), "data": rows.flatten().tolist()}
    answer = requests.post(f"{url}/v2/models/{model}/infer", json={"inputs": [tensor]}, timeout=10)
    answer.raise_for_status()
    [scores] = answer.json()["outputs"]
    return np.array(scores["data"], np.float32).reshape(scores["shape"])


with tempfile.TemporaryDirectory() as scratch:
    models = pathlib.Path(scratch, "models")
    write_torchscript(models / "digits-torchscript")
    write_onnx(pathlib.Path(scratch, "digits.onnx"))
    publish(pathlib.Path(scratch, "digits.onnx"), models / "digits-onnx")
    with serving(models) as url:
        expected = network(images[test]).detach().numpy()
        for model in ("digits-torchscript", "digits-onnx"):
            scores = classify(url, model)
            correct = int((scores.argmax(1) == labels[test].numpy()).sum())
            same = np.allclose(scores, expected, rtol=1e-4, atol=1e-4)
            print(f"{model}: {correct} of {len(scores)} digits correct, scores equal PyTorch's: {same}")
