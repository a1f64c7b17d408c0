import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            value, start = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT", "START"))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", value + start)]))
        return answers
