"""Turn an image until its text can be read."""

import numpy as np
import triton_python_backend_utils as pb_utils

#: Text with this score on the average is the right way up.
SURE = 0.92


class TritonPythonModel:
    def execute(self, requests):
        return [self.read(request) for request in requests]

    def read(self, request):
        image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        best, best_score = None, -1.0
        for quarter_turns in (0, 2, 1, 3):
            turned = np.ascontiguousarray(np.rot90(image, quarter_turns))
            ask = pb_utils.InferenceRequest(
                model_name="ocr",
                inputs=[pb_utils.Tensor("IMAGE", turned)],
                requested_output_names=["TEXT", "SCORE"],
            )
            answer = ask.exec()
            if answer.has_error():
                return pb_utils.InferenceResponse(error=answer.error())
            text, scores = (pb_utils.get_output_tensor_by_name(answer, name) for name in ("TEXT", "SCORE"))
            score = scores.as_numpy().mean() if scores.as_numpy().size else 0.0
            if score > best_score:
                turns = pb_utils.Tensor("QUARTER_TURNS", np.array([quarter_turns], np.int32))
                best, best_score = [text, scores, turns], score
            if score >= SURE:
                break
        return pb_utils.InferenceResponse(best)
