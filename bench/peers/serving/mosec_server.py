"""mosec: POST /inference {"x": [..]}. The command line (--address, --port, --timeout) is mosec's own."""

import numpy as np
from light import BATCH_WAIT_S, MAX_BATCH, run, session
from mosec import Server, Worker


class Light(Worker):
    def __init__(self):
        self.model = session()

    def forward(self, data: list[dict]) -> list[dict]:
        rows = np.array([item["x"] for item in data], np.float32)
        return [{"y": row} for row in run(self.model, rows).tolist()]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Light, num=1, max_batch_size=MAX_BATCH, max_wait_time=int(BATCH_WAIT_S * 1000))
    server.run()
