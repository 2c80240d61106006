"""MLServer: a custom runtime; POST /v2/models/light/infer (Open Inference Protocol). `bench load`, which sends MLServer
the requests during a swap, has no JSON form of that protocol. For it there is a path with TensorFlow Serving's."""

import numpy as np
from fastapi import Request
from light import INPUT, OUTPUT, run, session
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.context import model_context
from mlserver.handlers import custom_handler
from mlserver.types import InferenceRequest, InferenceResponse


class Light(MLModel):
    async def load(self) -> bool:
        self.model = session(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output(OUTPUT, run(self.model, rows))
        return InferenceResponse(model_name=self.name, outputs=[output])

    @custom_handler(rest_path="/v1/models/light:predict")
    async def tensorflow_predict(self, request: Request) -> dict:
        rows = np.array((await request.json())["inputs"][INPUT], np.float32)
        # MLServer replaced `predict` by one that merges requests.
        with model_context(self.settings):
            answer = await self.predict(InferenceRequest(inputs=[NumpyCodec.encode_input(INPUT, rows)]))
        return {"outputs": NumpyCodec.decode_output(answer.outputs[0]).tolist()}
