"""LitServe: POST /predict {"x": [..]}."""

import os

import litserve
import numpy as np
from light import BATCH_WAIT_S, MAX_BATCH, run, session


class Light(litserve.LitAPI):
    def setup(self, device):
        self.model = session()

    def decode_request(self, request):
        return np.array(request["x"], np.float32)

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, x):
        # Without batching, LitServe passes one row.
        return run(self.model, np.atleast_2d(x))

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"y": output.tolist()}


if __name__ == "__main__":
    api = Light(max_batch_size=MAX_BATCH, batch_timeout=BATCH_WAIT_S)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(os.environ["PEER_PORT"]), generate_client_file=False, log_level="warning")
