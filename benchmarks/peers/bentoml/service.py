"""BentoML: an identity model with adaptive batching."""

import bentoml
import numpy as np


@bentoml.service(workers=1)
class Identity:
    @bentoml.api(batchable=True, max_batch_size=64, max_latency_ms=1000)
    def predict(self, x: np.ndarray) -> np.ndarray:
        return x
