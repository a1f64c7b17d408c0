"""The fast connection, fed by hand: no sockets, so every byte comes when the test says so."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.endpoints.http1_peer import ANSWER, Loop, Peer, Server
from tests.laws import law

REQUEST = b"POST /one HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"POST /two HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
UNKNOWN = b"BREW /three HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture
def peer(loop: Loop) -> Peer:
    return Peer(loop)


@pytest.mark.parametrize("request_", [REQUEST, CHUNKED, UNKNOWN], ids=["length", "chunked", "unknown method"])
def test_request_may_be_split_at_any_byte(loop: Loop, request_: bytes) -> None:
    stream = request_ + REQUEST
    for cut in range(len(stream) + 1):
        peer = Peer(loop)
        peer.feed(stream[:cut], stream[cut:])
        assert [message.line.path for message in peer.messages] == [request_.split()[1].decode(), "/one"]
        assert peer.messages[1].body == b"abc"
        assert peer.wire.sent == ANSWER * 2
    peer = Peer(loop)
    peer.feed(*(bytes([byte]) for byte in stream))
    assert peer.wire.sent == ANSWER * 2


@given(st.lists(st.sampled_from([REQUEST, CHUNKED]), min_size=1, max_size=6), st.data())
@law(50)
def test_requests_of_a_stream_do_not_depend_on_frame_boundaries(requests: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(requests)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))) | {0, len(stream)})
    loop = Loop()
    try:
        peer = Peer(loop)
        peer.feed(*(stream[a:b] for a, b in itertools.pairwise(cuts)))
    finally:
        loop.close()
    assert [(message.line.path, message.body) for message in peer.messages] == [
        (request.split()[1].decode(), b"abc") for request in requests
    ]
    assert peer.wire.sent == ANSWER * len(requests)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_responses_are_sent_in_the_order_of_the_requests(order: tuple[int, ...]) -> None:
    loop = Loop()
    try:
        peer = Peer(loop)
        peer.server.hold = True
        peer.feed(REQUEST * 4)
        for index in order:
            peer.messages[index].exchange.respond(b"HTTP/1.1 20%d X\r\n\r\n" % index)
    finally:
        loop.close()
    assert [int(line.split()[1]) for line in peer.wire.sent.split(b"\r\n\r\n")[:-1]] == [200, 201, 202, 203]


def test_reading_is_paused_while_many_requests_wait(peer: Peer) -> None:
    peer.feed(REQUEST)
    peer.server.hold = True
    peer.feed(REQUEST * 31)
    assert peer.wire.reading
    peer.feed(REQUEST * 100)
    assert not peer.wire.reading
    assert len(peer.messages) == 33  # the others are not started
    for message in peer.messages[1:]:
        message.answer()
    peer.pass_turns()
    assert len(peer.messages) == 65
    peer.server.hold = False
    for message in peer.messages[33:]:
        message.answer()
    peer.pass_turns()
    assert peer.wire.reading
    assert peer.wire.sent == ANSWER * 132


def test_few_requests_are_started_before_the_size_of_a_response_is_known(peer: Peer) -> None:
    peer.server.hold = True
    peer.feed(REQUEST * 40)
    assert (len(peer.messages), peer.wire.reading) == (4, False)
    peer.messages[0].answer()
    peer.pass_turns()
    assert len(peer.messages) == 33


def test_large_responses_leave_room_for_fewer_requests(peer: Peer) -> None:
    peer.feed(REQUEST)
    peer.server.hold = True
    peer.connection._largest = 20 << 20
    peer.feed(REQUEST * 10)
    assert len(peer.messages) == 1 + 3  # of 20 MiB each, and 64 MiB are allowed


def test_connections_share_the_room_for_pipelined_requests(loop: Loop) -> None:
    server = Server(loop)
    peers = [Peer(loop, server) for _ in range(2048)]
    server.hold = True
    peers[0].feed(REQUEST * 10)
    assert len(server.messages) == 2
    server.connections.update({Peer(loop, server).connection for _ in range(10_000)})
    peers[1].feed(REQUEST * 10)
    assert len(server.messages) == 3


def test_nothing_is_started_for_a_client_that_does_not_read(peer: Peer) -> None:
    peer.feed(REQUEST)
    peer.connection.pause_writing()
    peer.feed(REQUEST * 10)
    assert len(peer.messages) == 1
    peer.connection.resume_writing()
    peer.pass_turns()
    assert peer.wire.sent == ANSWER * 11


def test_rest_of_a_body_is_read_although_other_requests_wait(peer: Peer) -> None:
    peer.feed(REQUEST)
    peer.server.hold = True
    peer.feed(REQUEST * 31 + REQUEST[:-2])
    peer.feed(REQUEST[-2:])
    assert [message.body for message in peer.messages] == [b"abc"] * 33


def test_reading_is_paused_while_the_client_does_not_read(peer: Peer) -> None:
    peer.connection.pause_writing()
    assert not peer.wire.reading
    waiting = peer.connection._writable
    peer.connection.resume_writing()
    assert peer.wire.reading
    assert waiting.done()


def test_broken_stream_closes_after_pending_responses(peer: Peer) -> None:
    peer.server.hold = True
    peer.feed(REQUEST + b"nonsense\r\n\r\n")
    assert peer.wire.state == "open"
    peer.messages[0].answer()
    assert peer.wire.sent.startswith(ANSWER[:15])
    assert peer.wire.state == "closed"


def test_malformed_body_gets_no_response(peer: Peer) -> None:
    peer.feed(CHUNKED.replace(b"2\r\nab", b"zz\r\nab"))
    assert peer.wire.state == "closed"
    assert peer.wire.sent == b""
    assert peer.messages[0].gone


def test_endless_head_closes_the_connection(peer: Peer) -> None:
    peer.feed(b"GET / HTTP/1.1\r\n", *[b"X: " + b"a" * 10_000 + b"\r\n"] * 7)
    assert peer.wire.state == "closed"


@pytest.mark.parametrize("announced", [True, False])
def test_body_beyond_the_limit_is_refused_and_the_rest_is_discarded(loop: Loop, peer: Peer, announced: bool) -> None:
    if announced:
        peer.feed(REQUEST.replace(b"Length: 3", b"Length: 1001"))
    else:
        head, _, _ = CHUNKED.partition(b"2\r\nab")
        peer.feed(head, b"3e9\r\n" + b"a" * 1001)
    assert peer.wire.sent.startswith(b"HTTP/1.1 413 ")
    size = b"1001" if announced else b"more"
    text = b"request body: expected at most 1000 bytes, got %s: send less, or raise HttpOptions.max_body_size" % size
    assert b'{"error":"%s"}' % text in peer.wire.sent
    assert b"Connection: close" in peer.wire.sent
    assert peer.wire.state == "shut"
    peer.feed(b"a" * 5000)
    assert not peer.connection.busy
    loop.pass_time(2)
    assert peer.wire.state == "closed"


def test_chunks_beyond_tritons_limit_are_refused(peer: Peer) -> None:
    head, _, _ = CHUNKED.partition(b"2\r\nab")
    peer.server.max_body_size = 1 << 20
    peer.feed(head, b"1\r\na\r\n" * 65_536)
    assert peer.wire.sent == b""
    peer.feed(b"1\r\na\r\n" * 2)
    assert peer.wire.sent.startswith(b"HTTP/1.1 400 ")
    assert b"exceeds maximum of 65536 non-empty chunks" in peer.wire.sent


def test_chunked_body_overrides_a_content_length_and_closes_the_connection(peer: Peer) -> None:
    both = CHUNKED.replace(b"Host: h\r\n", b"Host: h\r\nContent-Length: 99999\r\n")
    peer.feed(both + REQUEST)
    assert [message.body for message in peer.messages] == [b"abc"]
    assert (peer.wire.sent.count(b"200 OK"), peer.wire.state) == (1, "closed")


def test_half_closed_client_still_gets_its_responses(peer: Peer) -> None:
    peer.server.hold = True
    peer.feed(REQUEST * 2)
    assert peer.connection.eof_received()
    for message in peer.messages:
        message.answer()
    assert peer.wire.sent.endswith(ANSWER)
    assert peer.wire.state == "closed"


def test_half_close_within_a_request_closes_the_connection(peer: Peer) -> None:
    peer.feed(REQUEST[:-1])
    assert not peer.connection.eof_received()
    assert peer.messages[0].gone


def test_disconnect_after_a_half_close_is_detected(loop: Loop, peer: Peer) -> None:
    peer.server.hold = True
    peer.feed(REQUEST)
    peer.connection.eof_received()
    assert peer.wire.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    loop.pass_time(0.1)
    assert peer.wire.state == "open"
    peer.wire.socket.error = 104
    loop.pass_time(0.1)
    assert peer.wire.state == "aborted"


def test_disconnect_is_reported_to_every_pending_request(peer: Peer) -> None:
    peer.server.hold = True
    peer.feed(REQUEST * 3)
    peer.messages[0].answer()
    peer.connection.connection_lost(None)
    assert [message.gone for message in peer.messages] == [False, True, True]
    assert not peer.server.connections


def test_connection_without_a_request_is_closed_after_the_idle_timeout(loop: Loop, peer: Peer) -> None:
    peer.feed(REQUEST)
    loop.pass_time(10)
    peer.connection.close_if_idle(loop.time() - 11, 0)
    assert peer.wire.state == "open"
    peer.server.hold = True
    peer.feed(REQUEST)
    loop.pass_time(10)
    peer.connection.close_if_idle(loop.time() - 5, 0)
    assert peer.wire.state == "open"  # it waits for us
    peer.messages[-1].answer()
    peer.connection.close_if_idle(loop.time() - 5, 0)
    assert peer.wire.state == "closed"


def test_connection_with_unfinished_request_is_closed_when_idle(loop: Loop, peer: Peer) -> None:
    peer.feed(REQUEST[:-1])
    loop.pass_time(10)
    peer.connection.close_if_idle(loop.time() - 5, 0)
    assert peer.wire.state == "aborted"


@pytest.mark.parametrize(
    "beginning", [b"G", b"POST /one HTTP/1.1\r\nHo", REQUEST + b"GET /", REQUEST[:-1] + b"cGET / HTTP/1.1\r\nA"]
)
def test_head_that_arrives_byte_by_byte_has_a_time_limit(loop: Loop, peer: Peer, beginning: bytes) -> None:
    peer.feed(beginning)
    for _ in range(10):
        loop.pass_time(7)
        peer.connection.close_if_idle(loop.time() - 3600, loop.time() - 75)
        peer.feed(b"E")
    assert peer.wire.state == "open"
    loop.pass_time(7)
    peer.connection.close_if_idle(loop.time() - 3600, loop.time() - 75)
    assert peer.wire.state == "closed"


def test_complete_heads_and_bodies_have_no_time_limit(loop: Loop, peer: Peer) -> None:
    for _ in range(10):
        peer.feed(REQUEST[:30])
        loop.pass_time(50)
        peer.feed(REQUEST[30:-1])
        loop.pass_time(50)
        peer.connection.close_if_idle(loop.time() - 3600, loop.time() - 60)
        peer.feed(REQUEST[-1:])
    assert peer.wire.sent == ANSWER * 10


def test_100_continue_is_sent_after_earlier_requests_are_answered(peer: Peer) -> None:
    peer.server.hold = True
    head, end, body = REQUEST.partition(b"\r\n\r\n")
    peer.feed(REQUEST + head + b"\r\nExpect: 100-continue" + end)
    assert peer.wire.sent == b""
    peer.messages[0].answer()
    assert peer.wire.sent == ANSWER + b"HTTP/1.1 100 Continue\r\n\r\n"
    peer.feed(body)
    assert peer.messages[1].body == b"abc"


def test_upgrade_to_another_protocol_is_ignored(peer: Peer) -> None:
    upgrade = b"GET /h2 HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    peer.feed(upgrade + REQUEST)
    assert peer.wire.sent == ANSWER * 2


def test_absolute_request_target_is_accepted(peer: Peer) -> None:
    peer.feed(REQUEST.replace(b" /one", b" http://localhost:8000/one?q=/two"))
    assert peer.messages[0].line.path == "/one?q=/two"


STRANGE = "POST /é\x01 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc".encode()


def test_request_target_may_contain_any_bytes_in_any_number_of_reads(loop: Loop) -> None:
    for request in (STRANGE, STRANGE.replace(b"POST", b"BREW")):
        for cut in range(len(request) + 1):
            peer = Peer(loop)
            peer.feed(request[:cut], request[cut:] + REQUEST)
            assert [message.line.path.encode("latin-1") for message in peer.messages] == ["/é\x01".encode(), b"/one"]
            assert [message.body for message in peer.messages] == [b"abc", b"abc"]
            assert peer.messages[0].line.method == ("POST" if request is STRANGE else "OPTIONS")


@pytest.mark.parametrize("line", [b"GET http://\xc3\xa9/ HTTP/1.1", b"GET \xc3\xa9 HTTP/1.1"])
def test_request_target_other_than_a_path_is_refused(peer: Peer, line: bytes) -> None:
    peer.feed(line + b"\r\nHost: h\r\n\r\n")
    assert (peer.messages, peer.wire.state) == ([], "closed")


@pytest.mark.parametrize("long", [b"X: " + b"a" * 70_000 + b"\r\n", b"X: aaaaaaaa\r\n" * 8000], ids=["one", "many"])
@pytest.mark.parametrize("cut", [0, 40_000])
def test_head_size_limit_applies_to_a_head_in_one_read(peer: Peer, long: bytes, cut: int) -> None:
    request = REQUEST.replace(b"Host: h\r\n", long)
    peer.feed(request[:cut], request[cut:] + REQUEST)
    assert (peer.messages, peer.wire.state) == ([], "closed")


def test_head_size_limit_does_not_apply_to_pipelined_requests_together(peer: Peer) -> None:
    peer.feed(REQUEST * 3000)
    assert peer.wire.sent == ANSWER * 3000


def test_invalid_first_bytes_close_the_connection(peer: Peer) -> None:
    peer.feed(b"\x16\x03\x01\x02")  # a client that wants TLS
    assert peer.wire.state == "closed"


def test_endless_request_line_closes_the_connection(peer: Peer) -> None:
    peer.feed(*[b"A" * 10_000] * 7)
    assert peer.wire.state == "closed"


@pytest.mark.parametrize("endless", [b"0\r\nX: ", b"0\r\nX: a\r\n", b"1;"], ids=["trailer", "trailers", "extension"])
def test_endless_body_framing_closes_the_connection(peer: Peer, endless: bytes) -> None:
    head, _, _ = CHUNKED.partition(b"2\r\nab")
    more = b"X: a\r\n" if endless.endswith(b"\n") else b"a" * 6
    peer.feed(head + endless, *[more * 2000] * 7)
    assert peer.wire.state == "closed"
    assert peer.messages[0].gone


def test_connection_is_not_read_after_a_refusal(peer: Peer) -> None:
    long = REQUEST.replace(b"Length: 3", b"Length: 1001") + b"a" * 998
    peer.feed(long + REQUEST)
    assert len(peer.messages) == 0
    assert peer.wire.sent.count(b"HTTP/1.1") == 1


@given(st.lists(st.sampled_from([REQUEST, CHUNKED, STRANGE, UNKNOWN, b"\r\n", b"\xff", b"0\r\n", b":"]), max_size=8),
       st.binary(max_size=20), st.data())  # fmt: skip
@law(150)
def test_connection_survives_arbitrary_streams(parts: list[bytes], noise: bytes, data: st.DataObject) -> None:
    loop = Loop()
    try:
        peer = Peer(loop)
        stream = bytearray(b"".join(parts))
        at = data.draw(st.integers(0, len(stream)))
        stream[at : at + data.draw(st.integers(0, 3))] = noise
        stream = stream[: data.draw(st.integers(0, len(stream)))]
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
        peer.feed(*(bytes(stream[a:b]) for a, b in itertools.pairwise([0, *cuts, len(stream)])))
        assert peer.wire.state in ("open", "closed", "shut")
        if peer.wire.state == "open":
            assert peer.wire.sent.count(b"200 OK") == sum(message.exchange.done for message in peer.messages)
            peer.connection.eof_received()
        peer.connection.connection_lost(None)
        assert not peer.connection._exchanges
        assert not peer.server.connections
    finally:
        loop.close()


@pytest.mark.parametrize("first", [b"POST /\xc3\xa9", b"BREW /"])
def test_text_after_an_unterminated_string_may_be_unparsable(
    peer: Peer, first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    peer.feed(first + b" HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n")
    assert (peer.messages, peer.wire.state, caplog.records) == ([], "closed", [])


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("request_", [REQUEST, CHUNKED], ids=["length", "chunked"])
def test_upgrade_request_may_have_a_body(loop: Loop, request_: bytes) -> None:
    stream = request_.replace(b"Host: h\r\n", UPGRADE) + REQUEST
    for cut in range(len(stream) + 1):
        peer = Peer(loop)
        peer.feed(stream[:cut], stream[cut:])
        assert [message.body for message in peer.messages] == [b"abc", b"abc"]
        assert [message.line.path for message in peer.messages] == [request_.split()[1].decode(), "/one"]


def test_simultaneous_upgrade_requests_are_answered(peer: Peer) -> None:
    peer.feed(REQUEST.replace(b"Host: h\r\n", UPGRADE) * 1500)
    assert peer.wire.sent.count(ANSWER) == 1500
