"""The running total of each sequence."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def value(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()

        total = 0
        if value("READY"):
            sequence = value("CORRID")
            total = value("INPUT") + (0 if value("START") else self.totals[sequence])
            self.totals[sequence] = total
            if value("END"):
                del self.totals[sequence]
        output = pb_utils.Tensor("OUTPUT", np.array([[total]], np.int32))
        return pb_utils.InferenceResponse([output])
