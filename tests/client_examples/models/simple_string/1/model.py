import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            a, b = (
                np.vectorize(int)(pb_utils.get_input_tensor_by_name(request, name).as_numpy())
                for name in ("INPUT0", "INPUT1")
            )
            texts = [
                np.array([[str(number) for number in row] for row in rows], dtype=object) for rows in (a + b, a - b)
            ]
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(f"OUTPUT{n}", t) for n, t in enumerate(texts)]))
        return answers
