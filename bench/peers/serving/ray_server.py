"""Ray Serve: POST /v1/models/light:predict {"inputs": {"x": [[..]]}}.

SIGHUP deploys the next version by a rolling update.
"""

import logging
import os
import signal
import threading

import numpy as np
import ray
from light import BATCH_WAIT_S, INPUT, MAX_BATCH, run, session
from ray import serve


@serve.deployment(num_replicas=1, max_ongoing_requests=1024, ray_actor_options={"num_cpus": 1})
class Light:
    def __init__(self, version: int):
        self.version, self.model = version, session()

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=BATCH_WAIT_S)
    async def infer(self, rows: list) -> list:
        return run(self.model, np.array(rows, np.float32)).tolist()

    async def __call__(self, request):
        body = await request.json()
        [row] = body["inputs"][INPUT]
        return {"outputs": [await self.infer(row)]}


def main():
    swaps = threading.Semaphore(0)
    signal.signal(signal.SIGHUP, lambda *_: swaps.release())
    # Room for both versions during an update.
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
             object_store_memory=100 << 20, _temp_dir=os.environ["PEER_SCRATCH"])  # fmt: skip
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["PEER_PORT"])})
    version = 1
    while True:
        serve.run(Light.bind(version), name="light", route_prefix="/v1/models/light:predict")
        while not swaps.acquire(timeout=0.05):
            pass
        version += 1


main()
