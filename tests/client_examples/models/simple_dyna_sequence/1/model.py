import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            value, start, end, sequence = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1, 1)
                for name in ("INPUT", "START", "END", "CORRID")
            )
            total = value + start + end * sequence.astype(np.int64)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", total.astype(np.int32))]))
        return answers
