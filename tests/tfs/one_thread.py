"""Runs a SavedModel of version 1 with one thread: `one_thread.py MODEL DIRECTORY`.

Reads `inputs.npz` of the directory, writes `outputs.npz`, prints the input's name."""

import pathlib
import sys

import numpy as np
import tensorflow.compat.v1 as tf


def main(model: str, directory: pathlib.Path) -> None:
    (value,) = np.load(directory / "inputs.npz").values()
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        signature = tf.saved_model.load(session, ["serve"], model).signature_def["serving_default"]
        ((name, given),) = signature.inputs.items()
        fetches = {key: info.name for key, info in signature.outputs.items()}
        np.savez(directory / "outputs.npz", **session.run(fetches, {given.name: value}))
    print(name)


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
