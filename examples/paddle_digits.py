"""Paddle: train a network, save it for inference, convert it with paddle2onnx, publish it and predict.

    pip install paddlepaddle paddle2onnx scikit-learn requests
    python examples/paddle_digits.py
"""

import pathlib
import tempfile

import numpy as np
import paddle
import paddle2onnx
import requests
from server import publish, serving
from sklearn.datasets import load_digits

paddle.seed(0)
digits = load_digits()
images = (digits.data / 16).astype(np.float32)
labels = digits.target.reshape(-1, 1)
train, test = slice(0, 1400), slice(1400, None)

network = paddle.nn.Sequential(paddle.nn.Linear(64, 64), paddle.nn.ReLU(), paddle.nn.Linear(64, 10))
optimizer = paddle.optimizer.Adam(0.01, parameters=network.parameters())
for _ in range(150):
    loss = paddle.nn.functional.cross_entropy(
        network(paddle.to_tensor(images[train])), paddle.to_tensor(labels[train])
    )
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
network.eval()

with tempfile.TemporaryDirectory() as scratch:
    saved, file = pathlib.Path(scratch, "digits"), pathlib.Path(scratch, "digits.onnx")
    models = pathlib.Path(scratch, "models")
    # The free first axis lets a request have any number of images. Paddle 3 writes digits.json, Paddle 2
    # digits.pdmodel; the weights are in digits.pdiparams.
    paddle.jit.save(network, str(saved), input_spec=[paddle.static.InputSpec([None, 64], "float32", "image")])
    [graph] = [path for path in (saved.with_suffix(".json"), saved.with_suffix(".pdmodel")) if path.exists()]
    weights = saved.with_suffix(".pdiparams")
    # Its optimizer would install packages during the export. ONNX Runtime optimizes the graph when it loads it.
    paddle2onnx.export(str(graph), str(weights), str(file), opset_version=17, optimize_tool=None)
    publish(file, models / "digits")
    with serving(models) as url:
        answer = requests.post(f"{url}/v1/models/digits:predict", json={"instances": images[test].tolist()}, timeout=10)
        answer.raise_for_status()
        scores = np.array(answer.json()["predictions"], np.float32)

correct = int((scores.argmax(1) == digits.target[test]).sum())
expected = network(paddle.to_tensor(images[test])).numpy()
print(f"{correct} of {len(scores)} digits correct")
print(f"scores equal Paddle's: {np.allclose(scores, expected, rtol=1e-4, atol=1e-4)}")
