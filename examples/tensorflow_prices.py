"""TensorFlow: train a regression, save it as a SavedModel and serve the SavedModel as it is.

The TensorFlow engine runs the graph (`make tensorflow`), so no conversion changes its answers. Keras models are
written the same way, with `model.export(path)`.

    pip install tensorflow requests
    python examples/tensorflow_prices.py
"""

import os
import pathlib
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import requests
import tensorflow as tf
from server import serving


class Prices(tf.Module):
    """Price of a house from its area and number of rooms, and the same as a class."""

    def __init__(self):
        self.weights = tf.Variable([[0.0], [0.0]])
        self.bias = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="house")])
    def price(self, house):
        return {"price": tf.squeeze(house @ self.weights + self.bias, 1)}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="house")])
    def tier(self, house):
        return {"tier": tf.where(self.price(house)["price"] > 4.0, "expensive", "cheap")}


random = np.random.default_rng(0)
houses = random.uniform(0, 2, (512, 2)).astype(np.float32)
true_prices = houses @ np.array([2.0, 0.5], np.float32) + 1

module = Prices()
for _ in range(400):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((module.price(houses)["price"] - true_prices) ** 2)
    variables = [module.weights, module.bias]
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        variable.assign_sub(0.1 * gradient)

with tempfile.TemporaryDirectory() as scratch:
    models = pathlib.Path(scratch, "models")
    # A version is a numbered directory, as in TensorFlow Serving.
    signatures = {"serving_default": module.price, "tier": module.tier}
    tf.saved_model.save(module, str(models / "prices/1"), signatures)
    with serving(models) as url:
        predict = f"{url}/v1/models/prices:predict"
        body = {"instances": [[1.0, 1.0], [2.0, 2.0]]}
        prices = requests.post(predict, json=body, timeout=30).json()["predictions"]
        tiers = requests.post(predict, json={"signature_name": "tier", **body}, timeout=30).json()["predictions"]

for house, price, tier in zip(body["instances"], prices, tiers):
    print(f"area {house[0]}, rooms {house[1]}: {price:.2f}, {tier}")
local = module.price(np.array(body["instances"], np.float32))["price"].numpy()
print(f"same prices as TensorFlow: {np.allclose(prices, local)}")
