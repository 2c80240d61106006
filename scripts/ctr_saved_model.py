"""Writes the click-through model of the benchmarks as a SavedModel of TensorFlow.

    ctr_saved_model.py --layout DIR --to DIR

DIR of --layout is the model as Millpond publishes it for ONNX Runtime: its manifest names the parameters, which are
copied bit for bit. So the same answers are expected of both. DIR of --to is filled.
"""

import argparse
import json
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

DENSE = 13


def parameters(layout):
    """Yields name and values of each parameter of a published version."""
    manifest = json.loads((layout / "millpond.json").read_text())
    weights = layout / manifest["weights"]["name"]
    for tensor in manifest["tensors"]:
        if tensor["dtype"] != "float32":
            raise SystemExit(f"{layout}: {tensor['name']} is {tensor['dtype']}, not float32")
        shape = tuple(tensor["dims"])
        yield tensor["name"], np.memmap(weights, "<f4", "r", tensor["offset"], shape)


class ClickThrough(tf.Module):
    """Embedding look-ups, joined with dense features, and fully connected layers."""

    def __init__(self, layout):
        super().__init__()
        variables = {name: tf.Variable(values, name=name) for name, values in parameters(layout)}
        count = sum(name.startswith("emb_") for name in variables)
        self.tables = [variables[f"emb_{table}"] for table in range(count)]
        layers = (len(variables) - count) // 2
        self.layers = [(variables[f"w{layer}"], variables[f"b{layer}"]) for layer in range(layers)]

    def predict(self, sparse, dense):
        rows = tf.unstack(sparse, num=len(self.tables), axis=1)
        found = [tf.gather(table, row) for table, row in zip(self.tables, rows)]
        value = tf.concat([*found, dense], axis=1)
        for weights, bias in self.layers[:-1]:
            value = tf.nn.relu(tf.matmul(value, weights) + bias)
        weights, bias = self.layers[-1]
        return {"prob": tf.sigmoid(tf.matmul(value, weights) + bias)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layout", required=True, type=pathlib.Path)
    parser.add_argument("--to", required=True, type=pathlib.Path)
    args = parser.parse_args()
    model = ClickThrough(args.layout)
    inputs = [
        tf.TensorSpec([None, len(model.tables)], tf.int64, "sparse"),
        tf.TensorSpec([None, DENSE], tf.float32, "dense"),
    ]
    signature = tf.function(model.predict).get_concrete_function(*inputs)
    tf.saved_model.save(model, str(args.to), {"serving_default": signature})


if __name__ == "__main__":
    main()
