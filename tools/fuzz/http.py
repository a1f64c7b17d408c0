"""HTTP/1.1: connections with both ends in memory, the real endpoint, and models that respond at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.endpoints.http1_peer import Loop
from tests.endpoints.in_memory import Endpoints
from tools.fuzz.targets import Try
from tools.fuzz.unexpected import UnexpectedErrors, require
from tritonnb.endpoints.http.options import HttpOptions

_TYPES = ("BOOL", "UINT8", "UINT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING", "BF16")
MODELS = (
    'name: "echo" max_batch_size: 8 input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } '
    'output { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }',
    'name: "strings" input { name: "X" data_type: TYPE_STRING dims: [ 1 ] } '
    'output { name: "X" data_type: TYPE_STRING dims: [ 1 ] }',
    'name: "types"'
    + "".join(f' input {{ name: "{name}" data_type: TYPE_{name} dims: [ -1, 2 ] optional: true }}' for name in _TYPES)
    + "".join(f' output {{ name: "{name}" data_type: TYPE_{name} dims: [ -1, 2 ] }}' for name in _TYPES),
)
_STATUSES = {100, 200, 400, 403, 404, 405, 413, 500, 501, 503}
_LIMIT = 1 << 20
#: The limit of bodies on connections; some bodies of the corpus exceed it.
_MAX_BODY = 100
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: What connections send, and the states in which they end.
Answers = list[tuple[bytes, str]]


class Pair:
    """The same endpoints with caches and without them, which must give the same answers."""

    def __init__(self, errors: UnexpectedErrors, options: HttpOptions) -> None:
        self.loop = Loop()
        errors.watch(self.loop)
        self.errors = errors
        self.sides = [Endpoints(self.loop, options, caches=caches) for caches in (True, False)]
        for side in self.sides:
            for config in MODELS:
                side.models.load(config)

    def answers(self, *sent: tuple[int, bytes]) -> Answers:
        """Return the answers to bytes that are sent on new connections, each with the number of its connection."""
        known, fresh = (self._answers(side, sent) for side in self.sides)
        require(known == fresh, f"with caches: {known!r}, without: {fresh!r}")
        accepted = [side.models.accepted[:] for side in self.sides]
        require(accepted[0] == accepted[1], f"requests with caches: {accepted[0]!r}, without: {accepted[1]!r}")
        for side in self.sides:
            side.models.accepted.clear()
        self.errors.check()
        return known

    def _answers(self, side: Endpoints, sent: tuple[tuple[int, bytes], ...]) -> Answers:
        connections = [side.connect_http() for _ in range(1 + max(number for number, _ in sent))]
        for number, part in sent:
            connections[number].feed(part)
        answers = [(connection.wire.sent, connection.wire.state) for connection in connections]
        for connection in connections:
            connection.lose()
        self.loop.pass_time(10)  # timers of the connections
        require(not side.leftovers, "a connection is still registered")
        return answers


@contextmanager
def connections() -> Iterator[Try]:
    """Bytes on four connections; the first byte says where they are cut.

    One connection gets the whole, one the two parts, and two the second part. The responses must not depend on the cut,
    nor on the heads that were seen before.
    """

    def run(data: bytes) -> None:
        cut, stream = data[:1], data[1:]
        at = len(stream) * (cut[0] if cut else 0) // 256
        first, second = stream[:at], stream[at:]
        answers = pair.answers((0, stream), (1, first), (1, second), (2, second), (3, second))
        answers = [(sent.replace(_CONTINUE, b""), state) for sent, state in answers]
        for sent, _ in answers:
            check_responses(sent)
        # Bytes that are not a request may be refused earlier or later, depending on the cut.
        shorter, longer = sorted(answers[:2], key=lambda answer: len(answer[0]))
        is_same = longer[0].startswith(shorter[0]) and (longer[0] == shorter[0] or shorter[1] != "open")
        require(is_same, f"cut at {at}: {shorter!r}, {longer!r}")

    with UnexpectedErrors() as errors:
        pair = Pair(errors, HttpOptions(max_input_size=_LIMIT, max_body_size=_MAX_BODY))
        yield run
        pair.loop.close()


@contextmanager
def inference_bodies() -> Iterator[Try]:
    """Send the body of an inference request on three connections.

    The first byte selects the model and the headers, the next two are the length of the JSON.
    """
    encodings = (b"", b"Content-Encoding: gzip\r\n", b"Content-Encoding: deflate\r\n", b"Accept-Encoding: gzip\r\n")

    def run(data: bytes) -> None:
        choice, length, body = data[0] if data else 0, int.from_bytes(data[1:3], "little"), data[3:]
        model = (b"echo", b"strings", b"types")[choice % 3]
        headers = encodings[choice // 3 % 4]
        if choice & 128:
            headers += b"Inference-Header-Content-Length: %d\r\n" % length
        head = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n"
        request = head % (model, headers, len(body)) + body
        for sent, state in pair.answers((0, request), (1, request), (2, request)):
            require(state == "open", f"the connection is {state}")
            require(sent.startswith(b"HTTP/1.1 "), "expected a response, got none")
            check_responses(sent)

    with UnexpectedErrors() as errors:
        pair = Pair(errors, HttpOptions(max_input_size=_LIMIT, max_body_size=_LIMIT))
        yield run
        pair.loop.close()


def check_responses(sent: bytes) -> None:
    """Check that responses are well-formed, and have statuses that are documented."""
    while sent:
        head, _, rest = sent.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        status = int(lines[0].split(b" ")[1])
        require(status in _STATUSES, f"undocumented status {status}")
        headers = dict(line.lower().split(b": ", 1) for line in lines[1:])
        if headers.get(b"transfer-encoding") == b"chunked":
            _, end, sent = rest.partition(b"0\r\n\r\n")
            require(bool(end), "a chunked response does not end")
            continue
        length = int(headers.get(b"content-length", b"0"))
        require(len(rest) >= length, "a response is cut off")
        sent = rest[length:]
