"""BentoML: POST /predict {"x": [[..]]}, a batch of one row."""

import bentoml
import numpy as np
from light import MAX_BATCH, run, session


@bentoml.service(workers=1, traffic={"timeout": 60, "max_concurrency": 1024}, logging={"access": {"enabled": False}})
class Light:
    def __init__(self):
        self.model = session()

    # The latency is a target of its adaptive batching; requests that miss it by far are refused.
    @bentoml.api(batchable=True, batch_dim=0, max_batch_size=MAX_BATCH, max_latency_ms=1000)
    def predict(self, x: np.ndarray) -> np.ndarray:
        return run(self.model, x.astype(np.float32))
