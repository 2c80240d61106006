"""Triton's Python backend by PyTriton: POST /v2/models/light/infer (Open Inference Protocol)."""

import os
import pathlib

import numpy as np
from light import INPUT, MAX_BATCH, OUTPUT, run, session
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

model = session()


@batch
def infer(x):
    return [run(model, x)]


port = int(os.environ["PEER_PORT"])
free = [int(number) for number in os.environ["PEER_FREE_PORTS"].split(",")]
config = TritonConfig(http_address="127.0.0.1", http_port=port, grpc_address="127.0.0.1", grpc_port=free[0],
                      metrics_port=free[1], allow_metrics=False, log_verbose=0)  # fmt: skip
with Triton(config=config, workspace=str(pathlib.Path(os.environ["PEER_SCRATCH"], "triton"))) as triton:
    triton.bind(
        model_name="light",
        infer_func=infer,
        inputs=[Tensor(name=INPUT, dtype=np.float32, shape=(64,))],
        outputs=[Tensor(name=OUTPUT, dtype=np.float32, shape=(8,))],
        config=ModelConfig(max_batch_size=MAX_BATCH, batcher=DynamicBatcher()),
    )
    triton.serve()
