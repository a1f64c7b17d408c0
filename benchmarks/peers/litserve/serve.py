"""LitServe: an identity model with batching."""

import sys

import litserve as ls
import numpy as np


class Identity(ls.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return np.asarray(request["input"], np.float32)

    def predict(self, x):
        return x

    def encode_response(self, output):
        return {"output": output.tolist()}


if __name__ == "__main__":
    server = ls.LitServer(Identity(max_batch_size=64, batch_timeout=0.001), accelerator="cpu")
    server.run(port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
