"""The page of error messages: Triton's texts, their status, and what to do.

The texts and statuses are those of the code: the build fails if the package has no such text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import tritonnb.errors
from tritonnb.core.errors import Status, TritonError

ROOT = Path(__file__).parents[2]
#: The packages that respond to clients.
_PACKAGES = ("backends", "endpoints", "engine", "model_config", "scheduling")
#: Stands for a value in a text.
VALUE = "…"

#: The remedies by text, by section.
MESSAGES: Mapping[str, Mapping[str, str]] = {
    "Models and versions": {
        "Request for unknown model: '…' is not found":
            "No model of this name is loaded. Compare the name with the repository index (`server.index()`, "
            "`POST /v2/repository/index`), whose `reason` says why a model failed to load. With the model control "
            "mode `explicit`, load the model first.",
        "Request for unknown model: '…' version … is not found":
            "Request a version that the repository index lists, or none for the latest one. `version_policy` decides "
            "which versions are loaded.",
        "Request for unknown model: '…' version … is not at ready state":
            "The version is being loaded or unloaded, or has failed: see the repository index. Wait for "
            "`GET /v2/models/NAME/ready`.",
        "Request for unknown model: '…' has no available versions":
            "Every version failed to load or was unloaded: see the `reason` in the repository index.",
        "load failed for model '…': …":
            "The rest of the message is the reason. `server[\"NAME\"].edit()` marks the line of the configuration and "
            "offers fixes.",
        "failed to load '…', failed to poll from model repository":
            "The repository has no directory of this name, or its configuration cannot be read: see the log.",
        "explicit model load / unload is not allowed if polling is enabled":
            "Start the server with the model control mode `explicit`: `--model-control-mode=explicit`.",
        "unable to find backend library for backend '…', try specifying runtime on the model configuration.":
            "The `backend` of the configuration is misspelled or not installed: `tritonnb doctor` lists the backends "
            "and the packages that they need.",
        "unable to load model '…', configuration expects … inputs, model provides …":
            "The configuration and the model file disagree. Remove `input` and `output` from the configuration: they "
            "are read from most model files.",
        "unable to load model '…', configuration expects datatype … for … '…', model provides …":
            "Set the `data_type` of the tensor to that of the model, or remove it from the configuration.",
        "model '…', tensor '…': the model expects … dimensions (shape …) but the model configuration specifies "
        "… dimensions (…shape …)":
            "With `max_batch_size` above 0, `dims` omit the batch dimension: correct `dims`, or set `max_batch_size` "
            "to 0 for a model without that dimension.",
        "Model '…' is not ready (user-defined check failed).":
            "The function `is_ready` of *model.py* returned False.",
    },
    "Inputs and outputs": {
        "expected … but got … inputs for model '…'. Got input(s) […], but missing required input(s) ……]. "
        "Please provide all required input(s).":
            "Send every input of the configuration (the expected number of inputs), except those that are `optional`.",
        "unexpected inference input '…' for model '…'":
            "`GET /v2/models/NAME` lists the names of the inputs. Upper and lower case differ.",
        "unexpected inference output '…' for model '…'":
            "`GET /v2/models/NAME` lists the names of the outputs. Request none to get all.",
        "unexpected shape for input '…' for model '…'. Expected …, got …. …":
            "Send the shape of the configuration; -1 stands for any size. With `max_batch_size` above 0, the batch is "
            "the first dimension: one row has the shape `[1, …]`.",
        "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to "
        "each input shape. If you want to specify the full shape including the batch dim in your input dims config, "
        "try setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size.":
            "Follows the message of an unexpected shape.",
        "inference input '…' data-type is '…', but model '…' expects '…'":
            "Convert the array to the datatype of the input: `array.astype(numpy.float32)` for FP32.",
        "input '…' has no shape but model requires batch dimension for '…'":
            "Send `[1]` for a scalar: the first dimension is the batch.",
        "input '…' batch size does not match other inputs for '…'":
            "The first dimension has to be the same for all inputs of a request.",
        "inference request batch-size must be <= … for '…'":
            "The request has more rows than `max_batch_size`. Divide it, or increase `max_batch_size`.",
        "input byte size mismatch for input '…' for model '…'. Expected …, got …":
            "The data has not the size of shape and datatype: the client sent another datatype or shape than it "
            "declared, or `binary_data_size` is wrong.",
        "Shape does not match true shape of 'data' field":
            "`data` is nested otherwise than `shape` says, or has another number of elements.",
        "unexpected additional input data for model '…'":
            "The body is longer than the inputs: `binary_data_size` is too small for one of them, or the header "
            "`Inference-Header-Content-Length` is wrong.",
        "unexpected size for input '…', expecting … additional bytes for model '…'":
            "The body is shorter than the inputs: it was cut off, or `binary_data_size` is too large.",
        "failed to parse the request JSON buffer: … at …":
            "The body is not JSON. If it has binary tensors, send the length of its JSON in the header "
            "`Inference-Header-Content-Length`.",
        "request JSON size of … bytes exceeds the maximum allowed input size of … bytes. Use --http-max-input-size "
        "to increase the limit.":
            "Send large tensors in binary form, or start the server with a larger `--http-max-input-size`.",
        "sending … data via JSON is not supported. Please use the binary data format for output":
            "JSON has no form for FP16 and BF16: request the output with `binary_data`.",
        "Raw request must only have 1 input (found 1) to be deduced but got … inputs in '…' model configuration":
            "A body without JSON is the data of the only input. Send JSON for a model with several.",
        "Unable to find shared memory region: '…'":
            "Register the region before the request, under the name that the request uses.",
        "Unable to open shared memory region: '…'":
            "The region does not exist on the machine of the server: a client creates it before it registers it, and "
            "runs on the same machine.",
        "shared memory region '…' already in manager":
            "Unregister the region of this name first, or choose another name.",
    },
    "Queues and time limits": {
        "Exceeds maximum queue size":
            "As many requests wait as `max_queue_size` of the queue policy allows. Send fewer at once, retry later, or "
            "add instances.",
        "Request timeout expired":
            "The request waited for longer than its `timeout`, or than `default_timeout_microseconds` of the queue "
            "policy. Allow more time, or add instances.",
        "timeout of the corresponding sequence has been expired":
            "The sequence waited in the backlog for a slot. Increase the timeout or the number of slots, and end "
            "sequences that are complete.",
        "Server not ready":
            "The server is being stopped.",
    },
    "Sequences and streams": {
        "inference request to model '…' must specify a non-zero or non-empty correlation ID":
            "A stateful model needs `sequence_id` (the correlation ID) in each request.",
        "inference request for sequence … to model '…' must specify the START flag on the first request of the "
        "sequence":
            "Set `sequence_start` in the first request. If the sequence had begun: it has ended, or was idle for "
            "longer than `max_sequence_idle_microseconds`.",
        "inference request to model '…' must specify batch-size 1 due to requirements of sequence batcher":
            "Send one row in each request of a sequence.",
        "HTTP end point doesn't support models with decoupled transaction policy":
            "Use `POST /v2/models/NAME/generate_stream`, or a gRPC stream.",
        "ModelInfer RPC doesn't support models with decoupled transaction policy":
            "Use the RPC `ModelStreamInfer`: `start_stream` and `async_stream_infer` of `tritonclient`.",
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
        "number of responses":
            "Use `generate_stream` in place of `generate`.",
    },
    "Models in Python": {
        "Failed to process the request(s) for model '…', message: …":
            "*model.py* raised the exception in the message. Calls in this process show its traceback.",
        "Stub process '…' is not healthy.":
            "The process of an isolated model has ended; its last lines are in the log.",
        "Unable to send response. Response sender has been closed.":
            "The model sent a response after the final flag.",
    },
    "Access": {
        "This API is restricted, expecting header '…'":
            "Send the header with its value: `--http-restricted-api` protects this API.",
        "This protocol is restricted, expecting header '…'":
            "Send the metadata with its value: `--grpc-restricted-protocol` protects this RPC.",
    },
}  # fmt: skip


def error_messages_page() -> str:
    """Return each message as a section.

    Raises
    ------
    ValueError
        If the package has no such text.
    """
    parts = [
        "# Error messages\n",
        "Clients get Triton's texts. The status is that of HTTP, and Triton's code. Calls in this process raise the "
        "exceptions of `tritonnb.errors`, with a hint where there is one.\n",
    ]
    for section, messages in MESSAGES.items():
        parts.append(f"## {section}\n")
        for text, remedy in messages.items():
            status = status_of(text)
            head, _, rest = text.partition(". ")
            parts.append(f"### {head.rstrip('.')}\n")
            parts += [f"```text\n{text}\n```\n"] if rest else []
            parts.append(f"**{status.http} {status.label}.** {remedy}\n" if status else f"{remedy}\n")
    return "\n".join(parts)


def status_of(text: str) -> Status | None:
    """Return the status with which the code raises a text; None if it is not raised.

    Raises
    ------
    ValueError
        If the package has no such text.

    Examples
    --------
    >>> status_of("Request timeout expired").http
    503
    """
    statuses = [status for raised, status in _texts() if text in raised]
    if not statuses:
        raise ValueError(f"error message {text!r}: expected a text of the code, with {VALUE} for each value")
    return next((status for status in statuses if status is not None), None)


@cache
def _texts() -> list[tuple[str, Status | None]]:
    paths = [path for package in _PACKAGES for path in sorted((ROOT / "tritonnb" / package).rglob("*.py"))]
    return [found for path in paths for found in _texts_of(ast.parse(path.read_text("utf-8")))]


def _texts_of(tree: ast.AST) -> Iterator[tuple[str, Status | None]]:
    """Yield the texts in a module, and the status of the exceptions that are created with them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            exception = getattr(tritonnb.errors, "InvalidArgumentError" if name == "_refuse" else name, None)
            if isinstance(exception, type) and issubclass(exception, TritonError):
                given = [argument.attr for argument in node.args if isinstance(argument, ast.Attribute)]
                status = next((Status[name] for name in given if name in Status.__members__), exception.default_status)
                yield from ((_template(argument), status) for argument in node.args)
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            yield _template(node), None


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_template, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else VALUE
