import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            value, start, end, sequence = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
                for name in ("INPUT", "START", "END", "CORRID")
            )
            total = value if start else self.totals[sequence] + value
            self.totals[sequence] = total
            if end:
                total += int(sequence)
            output = pb_utils.Tensor("OUTPUT", np.array([[total]], np.int32))
            answers.append(pb_utils.InferenceResponse([output]))
        return answers
