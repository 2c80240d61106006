"""scikit-learn: train a pipeline, convert it with skl2onnx, publish it and predict.

    pip install scikit-learn skl2onnx requests
    python examples/sklearn_iris.py
"""

import pathlib
import tempfile

import numpy as np
import requests
from server import publish, serving
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

iris = load_iris()
split = train_test_split(iris.data.astype(np.float32), iris.target, random_state=0)
train, test, train_labels, test_labels = split
pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(train, train_labels)

# `zipmap: False` gives the probabilities as one tensor. The default, a list of dictionaries, cannot be served.
converted = to_onnx(pipeline, train[:1], options={"zipmap": False})

with tempfile.TemporaryDirectory() as scratch:
    file, models = pathlib.Path(scratch, "iris.onnx"), pathlib.Path(scratch, "models")
    file.write_bytes(converted.SerializeToString())
    publish(file, models / "iris")
    with serving(models) as url:
        answer = requests.post(f"{url}/v1/models/iris:predict", json={"instances": test.tolist()}, timeout=10)
        answer.raise_for_status()
        predictions = answer.json()["predictions"]

for row, prediction in list(zip(test, predictions))[:3]:
    name = iris.target_names[prediction["label"]]
    measures = row.astype(float).round(1).tolist()
    print(f"{measures}: {name} ({max(prediction['probabilities']):.2f})")

labels = [prediction["label"] for prediction in predictions]
print(f"accuracy on {len(test)} flowers: {np.mean(labels == test_labels):.2f}")
print(f"same labels as scikit-learn: {labels == pipeline.predict(test).tolist()}")
