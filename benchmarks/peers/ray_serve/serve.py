"""Ray Serve: an identity model with batching."""

import sys
import time

import numpy as np
from ray import serve


# As the documentation of serve.batch says: a replica has to accept at least as many requests as a batch holds, and the
# batch is no larger than the load can fill.
@serve.deployment(max_ongoing_requests=128)
class Identity:
    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
    async def predict(self, rows):
        return list(np.asarray(rows, np.float32))

    async def __call__(self, request):
        return {"output": (await self.predict((await request.json())["input"])).tolist()}


if __name__ == "__main__":
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Identity.bind())
    time.sleep(10**9)
