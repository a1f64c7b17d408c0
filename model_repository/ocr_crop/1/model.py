"""Cut the lines of text out of an image."""

import numpy as np
import triton_python_backend_utils as pb_utils

#: A pixel is text from here on, and a line is one if its box is on the average.
PIXEL, BOX = 0.3, 0.5
#: The network marks the middle of a line: a box grows by this times its area over its outline.
GROWTH = 1.6
#: What the recogniser was trained on; wider lines make the batch wider.
HEIGHT, WIDTH = 48, 320


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            text_map = pb_utils.get_input_tensor_by_name(request, "TEXT_MAP").as_numpy()
            boxes = find_boxes(text_map)
            outputs = [pb_utils.Tensor("CROPS", cut(image, boxes)), pb_utils.Tensor("BOXES", boxes)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses


def find_boxes(text_map):
    """INT32 [n, 4] from top to bottom; one empty box without text."""
    boxes = []
    for left, top, right, bottom in parts(text_map > PIXEL):
        if min(right - left, bottom - top) < 3 or text_map[top:bottom, left:right].mean() < BOX:
            continue
        width, height = right - left, bottom - top
        margin = round(GROWTH * width * height / (2 * (width + height)))
        boxes.append((top - margin, left - margin, bottom + margin, right + margin))
    if not boxes:
        return np.zeros((1, 4), np.int32)
    ordered = np.array(sorted(boxes), np.int32)[:, [1, 0, 3, 2]]
    height, width = text_map.shape
    return np.clip(ordered, 0, [width, height, width, height]).astype(np.int32)


def parts(mask):
    """The connected parts of a mask: left, top, right, bottom of each."""
    steps = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, begins = np.nonzero(steps == 1)
    _, ends = np.nonzero(steps == -1)
    first_of_row = np.searchsorted(rows, np.arange(len(mask) + 1))
    owner = np.arange(len(rows))  # of each run of pixels, the part that it belongs to
    for run, row in enumerate(rows):
        for above in range(first_of_row[max(row - 1, 0)], first_of_row[row]):
            if begins[above] <= ends[run] and begins[run] <= ends[above]:
                owner[owner == owner[run]] = owner[above]
    for part in np.unique(owner):
        own = owner == part
        yield begins[own].min(), rows[own].min(), ends[own].max(), rows[own].max() + 1


def cut(image, boxes):
    """FP32 [n, 3, 48, width]: the boxes of an image, each scaled to the height and padded to the width."""
    lines = [scale(image[top:bottom, left:right]) for left, top, right, bottom in boxes]
    widest = max(WIDTH, *(line.shape[1] for line in lines))
    crops = np.zeros((len(lines), 3, HEIGHT, widest), np.float32)
    for crop, line in zip(crops, lines, strict=True):
        crop[:, :, : line.shape[1]] = line.transpose(2, 0, 1)[::-1]  # blue, green, red
    return crops


def scale(line):
    """FP32 [48, width, 3] of -1 to 1; an empty line has no width."""
    height, width, _ = line.shape
    if not line.size:
        return np.zeros((HEIGHT, 0, 3), np.float32)
    pixels = line.astype(np.float32) / 127.5 - 1
    columns = -(-HEIGHT * width // height)
    return between(between(pixels, HEIGHT, 0), columns, 1)


def between(pixels, count, axis):
    """Pixels at as many places along an axis, each a mix of its two neighbours."""
    length = pixels.shape[axis]
    places = np.clip((np.arange(count, dtype=np.float32) + 0.5) * length / count - 0.5, 0, length - 1)
    lower = places.astype(np.int64)
    upper = np.minimum(lower + 1, length - 1)
    share = (places - lower).reshape([-1 if number == axis else 1 for number in range(3)])
    return pixels.take(lower, axis) * (1 - share) + pixels.take(upper, axis) * share
