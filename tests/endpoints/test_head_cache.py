"""Heads that were parsed before: the same requests, limits and refusals, without the parser."""

from __future__ import annotations

import itertools

import pytest

from tests.endpoints.http1_peer import ANSWER, Loop, Peer, Server

REQUEST = b"POST /one HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"POST /two HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
TOO_LARGE = REQUEST.replace(b"Length: 3\r\n\r\nabc", b"Length: 2000\r\n\r\n" + b"a" * 2000)  # the limit is 1000


@pytest.fixture
def server(loop: Loop) -> Server:
    return Server(loop)


def seen(peer: Peer) -> tuple[bytes, str, list[tuple[str, str, bytes]]]:
    """The results for the client, and for the endpoint."""
    requests = [(message.line.method, message.line.path, message.body) for message in peer.messages]
    return peer.wire.sent, peer.wire.state, requests


def test_known_head_is_not_parsed_again(loop: Loop, server: Server) -> None:
    peer, other = Peer(loop, server), Peer(loop, server)
    for _ in range(3):
        peer.feed(REQUEST)
        other.feed(REQUEST)
    assert peer.connection._parser.heads + other.connection._parser.heads == 2
    assert [(message.line.path, message.body) for message in server.messages] == [("/one", b"abc")] * 6
    assert peer.wire.sent == other.wire.sent == ANSWER * 3


def test_known_head_with_a_body_beyond_the_limit_is_refused_every_time(loop: Loop, server: Server) -> None:
    peer = Peer(loop, server)
    peer.feed(REQUEST)
    for _ in range(3):
        peer.feed(TOO_LARGE)
        assert peer.wire.sent.partition(b"HTTP/1.1 413 ")[0] in (ANSWER, b"")
        assert peer.wire.state == "shut"
        peer = Peer(loop, server)
    assert [message.body for message in server.messages] == [b"abc"]


def test_refused_head_is_not_stored(loop: Loop, server: Server) -> None:
    for _ in range(3):
        Peer(loop, server).feed(TOO_LARGE)
    assert server.heads.find(TOO_LARGE, 0, TOO_LARGE.index(b"\r\n\r\n") + 4) is None


def test_reduced_limit_applies_to_known_heads(loop: Loop, server: Server) -> None:
    Peer(loop, server).feed(REQUEST, REQUEST, REQUEST)
    server.max_body_size = 2
    peer = Peer(loop, server)
    peer.feed(REQUEST)
    assert peer.wire.sent.startswith(b"HTTP/1.1 413 ")


def test_known_heads_of_several_sizes_are_read_alike_in_any_order_and_any_pieces(loop: Loop, server: Server) -> None:
    longer, bare = REQUEST.replace(b"Host: h", b"Host: longer"), b"POST /none HTTP/1.1\r\nHost: h\r\n\r\n"
    Peer(loop, server).feed(*[REQUEST, longer, bare] * 2)
    for requests in itertools.permutations((REQUEST, longer, bare)):
        stream = b"".join(requests)
        bodies = [request.partition(b"\r\n\r\n")[2] for request in requests]
        for cut in range(1, len(stream), 3):
            peer = Peer(loop, server)
            peer.feed(longer, stream[:cut], stream[cut:])
            assert [message.body for message in server.messages[-4:]] == [b"abc", *bodies], (requests, cut)
            assert peer.wire.sent == ANSWER * 4


def test_heads_with_trace_ids_do_not_evict_other_heads(loop: Loop, server: Server) -> None:
    client, tracing = Peer(loop, server), Peer(loop, server)
    client.feed(REQUEST, REQUEST)
    for number in range(3000):
        tracing.feed(REQUEST.replace(b"Host: h", b"Host: h\r\ntraceparent: 00-%032x-%016x-01" % (number, number)))
    parsed = client.connection._parser.heads
    client.feed(REQUEST)
    assert client.connection._parser.heads == parsed


@pytest.mark.parametrize(
    "request_",
    [
        REQUEST,
        CHUNKED,
        TOO_LARGE,
        REQUEST.replace(b"Host: h", b"Host: h\r\nConnection: close"),
        REQUEST.replace(b"Host: h", b"Host: h\r\nExpect: 100-continue"),
        REQUEST.replace(b"Host: h", b"Host: h\r\nConnection: Upgrade\r\nUpgrade: h2c"),
        REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"),
        REQUEST.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n"),
        CHUNKED.replace(b"Host: h", b"Host: h\r\nContent-Length: 3"),
        REQUEST.replace(b"POST", b"BREW"),
        b"CONNECT h:80 HTTP/1.1\r\nContent-Length: 6\r\n\r\n\r\n\r\n\r\n",
        b"GET /three HTTP/1.1\r\nHost: h\r\n\r\n",
    ],
)
def test_cached_and_uncached_requests_have_equal_responses(loop: Loop, server: Server, request_: bytes) -> None:
    for follower in (b"", REQUEST):
        for _ in range(4):
            fresh, peer = Peer(loop), Peer(loop, server)
            server.messages.clear()
            for part in (request_, request_ + follower):
                fresh.feed(part)
                peer.feed(part)
            assert seen(peer) == seen(fresh)


@pytest.mark.parametrize(
    "other",
    [REQUEST + REQUEST, REQUEST.replace(b"abc", b"xyz") + CHUNKED, REQUEST.replace(b"3", b"2", 1)[:-1], REQUEST[:-1]],
    ids=["two", "and another", "another length", "the end is missing"],
)
def test_known_head_without_exactly_one_complete_request_is_parsed(loop: Loop, other: bytes) -> None:
    fresh, knowing = Peer(loop), Peer(loop)
    knowing.feed(REQUEST, REQUEST)
    fresh.feed(other, b"c")
    knowing.feed(other, b"c")
    seen = [[(message.line.path, message.body) for message in peer.messages] for peer in (fresh, knowing)]
    assert seen[1] == [("/one", b"abc"), ("/one", b"abc"), *seen[0]]
    assert knowing.wire.sent == ANSWER * 2 + fresh.wire.sent
    assert knowing.wire.state == fresh.wire.state
