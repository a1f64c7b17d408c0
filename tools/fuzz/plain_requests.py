"""Plain inference requests are read by other readers than the rest, which must make the same of them.

``python -m tools.fuzz.plain_requests --cases 10000000`` compares the readers for ten million random requests of each
protocol: nearly plain ones, which mutations of a corpus seldom are.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from tools.fuzz.engines import mutate, try_input
from tools.fuzz.targets import Try
from tools.fuzz.unexpected import require
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest, Tensor, UndecodedTensor
from tritonnb.endpoints.grpc import infer_request as grpc_request
from tritonnb.endpoints.grpc.plain_request import read_plain
from tritonnb.endpoints.http.infer_request import _decode_plain, read_request
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.engine.shared_memory import SharedMemory
from tritonnb.model_config.parse import parse_text
from tritonnb.model_config.schema import ModelSpec

_CONFIG = (
    'name: "m" max_batch_size: 4 input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] } '
    'input { name: "B" data_type: TYPE_STRING dims: [ -1 ] } output { name: "C" data_type: TYPE_FP32 dims: [ -1 ] }'
)
_SPEC = ModelSpec.from_config(parse_text(_CONFIG).config)
#: The contents of binary inputs.
_TAIL = bytes(range(16))
_LIMIT = 1 << 20
_OFFSET = re.compile(r"(?<=failed to parse the request JSON buffer: ).*")


@contextmanager
def plain_headers() -> Iterator[Try]:
    """Read a header that is followed by 16 bytes."""
    yield compare


@contextmanager
def plain_messages() -> Iterator[Try]:
    """Read a serialized ``ModelInferRequest``."""
    yield compare_message


def compare_message(message: bytes) -> None:
    """Read a message with both readers, if the one for plain messages reads it."""
    plain = read_plain(message)
    if plain is None:
        return
    quick = _described(*plain.to_infer_request(_SPEC, 1))
    try:
        parsed = pb.ModelInferRequest.FromString(message)
        read = grpc_request.read_request(parsed, _SPEC, 1, SharedMemory())
    except (DecodeError, TritonError) as error:
        raise AssertionError(f"expected an error: {error!r}, got {quick}") from error
    strict = _described(*read)
    require(quick == strict, f"the quick reader: {quick}, protobuf: {strict}")
    names = (plain.model_name, plain.model_version) == (parsed.model_name, parsed.model_version)
    require(names, f"{message!r}: the model or its version differs")


def compare(header: bytes) -> None:
    """Read a header with both readers.

    A NUL ends a document. Only the strict reader knows that, so it reads a header with one behind it. The offset of an
    error may be that of the NUL.
    """
    if not header or b"\0" in header:
        return
    usual, strict = _outcome(header), _outcome(header + b"\0")
    require(usual == strict, f"the usual reader: {usual}, the strict one: {strict}")


def _outcome(header: bytes) -> str:
    """Return the request that is read, or its error, as text."""
    body = header + _TAIL
    try:
        request, response_format = read_request(_SPEC, 1, body, len(header), _LIMIT, SharedMemory())
    except TritonError as error:
        return _OFFSET.sub("", repr(error))
    return _described(request, response_format)


def _described(request: InferRequest, response_format: ResponseFormat) -> str:
    inputs = [_contents(name, tensor) for name, tensor in request.unchecked_inputs.items()]
    fields = ("id", "parameters", "priority", "timeout_us", "correlation_id", "flags", "requested_outputs")
    return repr((inputs, {field: getattr(request, field) for field in fields}, response_format))


def _contents(name: str, tensor: Tensor | UndecodedTensor) -> tuple[object, ...]:
    contents = tensor.array.tobytes() if isinstance(tensor, Tensor) else bytes(tensor.raw)
    return name, tensor.name, tensor.datatype.name, tensor.shape, contents


# --- random requests ----------------------------------------------------------------------

_INTEGERS = [str(number) for number in (0, 1, 2, 16, -1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400)]
_STRINGS = [json.dumps(text, ensure_ascii=False) for text in ("", "A", "FP32", "é", 'a"b', "\\")]
_VALUES = [*_INTEGERS, *_STRINGS, "true", "false", "null", "0.5", "-1e300", "NaN", "[]", "[0,4,1]", '{"a":1}']
_NAMES = (
    "binary_data_size", "shared_memory_region", "classification", "binary_data", "binary_data_output", "sequence_id",
    "sequence_start", "priority", "timeout", "temperature", "triton_x",
)  # fmt: skip
_LENGTHS = (1, 1, 2, 17, 20, 209, 308, 309, 310, 400)


def random_header(random: Random) -> bytes:
    """Return a header that is nearly plain: members are in any order, and may be unknown, repeated, or of any type."""
    choose = random.choice
    kind = random.randrange(3)
    inputs = [_input(random) for _ in range(random.randrange(3) or kind == 1)]
    given = [("inputs", f"[{','.join(inputs)}]")]
    if kind == 1:
        given += [("id", choose(('"7"', '"7"', '"é"', '"\\u0037"'))), ("parameters", _parameters(random))]
    elif kind == 2:
        outputs = [_object(random, _output(random)) for _ in range(random.randrange(3))]
        given.append(("outputs", f"[{','.join(outputs)}]"))
    return _object(random, given).encode()


def _object(random: Random, members: list[tuple[str, str]]) -> str:
    """Return an object with these members, in any order, and now and then with another one."""
    if random.random() < 0.25:
        members.append((random.choice([*[name for name, _ in members], "other"]), random.choice(_VALUES)))
    random.shuffle(members)
    return "{" + ",".join([f'"{name}":{value}' for name, value in members]) + "}"


def _parameters(random: Random) -> str:
    members = [
        f'"{random.choice(_NAMES)}":{_numeral(random) if random.random() < 0.1 else random.choice(_VALUES)}'
        for _ in range(random.randrange(4))
    ]
    return "{" + ",".join(members) + "}"


def _input(random: Random) -> str:
    name = random.choice(('"A"', '"B"'))
    if random.random() < 0.5:
        parameters = '{"binary_data_size":16}' if random.random() < 0.6 else _parameters(random)
        datatype, shape, last = '"FP32"', "[1,4]", ("parameters", parameters)
    else:
        datatype = random.choice(('"FP32"', '"BYTES"', '"INT64"'))
        shape = random.choice(("[]", "[1]", "[2]", "[0]", "[1,2]", "[2,2]", "[1,1]"))
        last = ("data", f"[{','.join(_elements(random))}]")
    return _object(random, [("name", name), ("shape", shape), ("datatype", datatype), last])


def _output(random: Random) -> list[tuple[str, str]]:
    name = ("name", '"C"')
    return [name, ("parameters", _parameters(random))] if random.random() < 0.5 else [name]


def _elements(random: Random) -> list[str]:
    kind, count = random.randrange(4), random.randrange(5)
    if kind == 0:
        return [_numeral(random) for _ in range(count % 3)]
    if kind == 1:
        return [repr(8 * random.random()) for _ in range(count)]
    return [random.choice(("0.5", "0", "9", "7.25", '"a"', '"b"', "[1,2]")) for _ in range(count)]


def _numeral(random: Random) -> str:
    """Return a number around the limits of a double, by its digits or by its exponent."""
    digits = (random.choice("0179") * random.choice(_LENGTHS)).lstrip("0") or "0"
    fraction = random.choice(("", "." + random.choice("0179") * random.choice(_LENGTHS)))
    size = random.choice((0, 9, 99, 1000, 10**20, random.randrange(290, 331)))
    exponent = random.choice(("", random.choice("eE") + random.choice(("", "+", "-")) + str(size)))
    return random.choice(("", "-")) + digits + fraction + exponent


def random_message(random: Random) -> bytes:
    """Return a serialized ``ModelInferRequest`` that is nearly plain, or a mutation of one."""
    name = ("A", "A", "B", "é", "")
    request = pb.ModelInferRequest(
        model_name=random.choice(name), model_version=random.choice(name), id=random.choice(name)
    )
    for _ in range(random.randrange(4)):
        datatype = random.choice(("FP32", "FP32", "BYTES", "INT8", "INT64", "A"))
        shape = [random.choice((-1, 0, 1, 1, 2, 3, 2**62)) for _ in range(random.randrange(4))]
        request.inputs.add(name=random.choice(name), datatype=datatype, shape=shape)
        if random.random() < 0.9:
            request.raw_input_contents.append(random.randbytes(random.choice((0, 4, 8, 20))))
    for _ in range(random.randrange(3)):
        request.outputs.add(name=random.choice(name))
    message: bytes = request.SerializeToString()
    return mutate([message], random) if random.random() < 0.3 else message


def main() -> None:
    """Compare the readers; a difference ends the program with the request."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.plain_requests", description=main.__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="of each protocol")
    parser.add_argument("--seed", type=int, default=secrets.randbits(63), help="a fresh one by default")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    random, began = Random(options.seed), time.monotonic()
    plain_headers = plain_messages = 0
    for case in range(1, options.cases + 1):
        header, message = random_header(random), random_message(random)
        try_input(compare, header)
        try_input(compare_message, message)
        plain_headers += _decode_plain(header) is not None
        plain_messages += read_plain(message) is not None
        if case % 100_000 == 0 or case == options.cases:
            spent = time.monotonic() - began
            shares = f"{plain_headers / case:.0%} of the headers and {plain_messages / case:.0%} of the messages plain"
            print(f"{case:,} cases of each protocol in {spent:,.0f} s, {shares}, no difference", flush=True)


if __name__ == "__main__":
    main()
