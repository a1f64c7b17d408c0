"""The model that a comparison runs: it sleeps, answers with its input, and logs which requests were in a batch.

It runs on Triton and on tritonnb unchanged. The log is a line of JSON for each batch, in a file of the model's
directory for each instance.
"""

from __future__ import annotations

import json
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A model that sleeps ``EXECUTION_MS``, and ``ROW_MS`` for each row, as its configuration's parameters say.

    With the parameters ``CALLED`` and ``CALLS``, it then calls that model so often for each request.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Open the log of this instance."""
        config = json.loads(args["model_config"])
        parameters, self.output = config["parameters"], config["output"][0]["name"]
        self.base_s, self.row_s = (float(parameters[key]["string_value"]) / 1e3 for key in ("EXECUTION_MS", "ROW_MS"))
        self.called = parameters["CALLED"]["string_value"] if "CALLED" in parameters else ""
        self.calls = int(parameters["CALLS"]["string_value"]) if self.called else 0
        path = os.path.join(args["model_repository"], f"batches.{args['model_instance_name']}.jsonl")
        self.log = open(path, "a", buffering=1)  # noqa: SIM115

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Run one batch."""
        inputs = [request.inputs()[0].as_numpy() for request in requests]
        planned_s = self.base_s + self.row_s * sum(len(array) for array in inputs)
        started = time.monotonic()
        time.sleep(planned_s)
        late_ms = (time.monotonic() - started - planned_s) * 1e3
        members = [request.request_id() for request in requests]
        self.log.write(json.dumps({"late_ms": late_ms, "requests": members}) + "\n")
        for request in requests:
            for _ in range(self.calls):
                self.call(request)
        return [pb_utils.InferenceResponse([pb_utils.Tensor(self.output, array)]) for array in inputs]

    def call(self, request: pb_utils.InferenceRequest) -> None:
        """Call the other model with the input of a request."""
        tensor = pb_utils.Tensor("I0", request.inputs()[0].as_numpy())
        call = pb_utils.InferenceRequest(
            model_name=self.called,
            requested_output_names=["O"],
            inputs=[tensor],
            request_id=request.request_id(),
        )
        error = call.exec().error()
        if error is not None:
            raise pb_utils.TritonModelException(error.message())

    def finalize(self) -> None:
        """Close the log."""
        self.log.close()
