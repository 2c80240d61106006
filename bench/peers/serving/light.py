"""The model that every peer serves: ONNX Runtime with one thread, the same session options for all."""

import os

import numpy as np
import onnxruntime

INPUT, OUTPUT, MAX_BATCH = "x", "y", 32
# Wait for further requests of a batch. Millpond waits for none; these servers need a positive time.
BATCH_WAIT_S = 0.001


def session(file: str | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(file or os.environ["PEER_MODEL"], options, providers=["CPUExecutionProvider"])


def run(model: onnxruntime.InferenceSession, rows: np.ndarray) -> np.ndarray:
    return model.run([OUTPUT], {INPUT: rows})[0]
