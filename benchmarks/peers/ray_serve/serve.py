"""Ray Serve: an identity model with batching."""

import sys
import time

import numpy as np
from ray import serve


@serve.deployment
class Identity:
    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.001)
    async def predict(self, rows):
        return list(np.asarray(rows, np.float32))

    async def __call__(self, request):
        return {"output": (await self.predict((await request.json())["input"])).tolist()}


if __name__ == "__main__":
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Identity.bind())
    time.sleep(10**9)
