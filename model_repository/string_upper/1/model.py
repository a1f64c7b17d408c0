"""Text in capital letters."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            upper = [string.decode("utf-8").upper().encode("utf-8") for string in text.flatten()]
            output = pb_utils.Tensor("UPPER", np.array(upper, dtype=np.object_).reshape(text.shape))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
