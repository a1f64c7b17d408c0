"""HTTP/1.1 over real sockets: the transport does what clients rely on."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any, cast

import pytest

from tests.endpoints.served import OneModel, Running, echoed, infer, running, with_server
from tritonnb.core.messages import InferRequest
from tritonnb.endpoints.http.endpoint import HttpEndpoint
from tritonnb.endpoints.http.options import HttpOptions

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n"


def chunked(data: bytes, size: int) -> bytes:
    """A request with its body in chunks."""
    head, _, body = data.partition(b"\r\n\r\n")
    head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


@with_server
async def test_connection_is_reused_for_the_next_request(server: Running) -> None:
    client = await server.connect()
    for value in range(3):
        client.send(infer(value))
        status, headers, body = await client.answer()
        assert (status, body) == (200, echoed(value))
        assert headers.keys() == {"content-type", "content-length"}


@with_server
async def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    client = await server.connect()
    client.send(b"".join([infer(1), LIVE + b"\r\n", infer(2), infer(3)]))
    assert [(await client.answer())[2] for _ in range(4)] == [echoed(1), b"", echoed(2), echoed(3)]


@pytest.mark.parametrize("answered_first", [True, False])
def test_unexpected_submission_error_is_the_only_response(answered_twice: list[str], answered_first: bool) -> None:
    """Even while it waits for its turn; otherwise the next request on the connection would get the other response."""

    async def scenario() -> None:
        async with running() as server:
            echo, client = server.echo, await server.connect()
            accept, echo.hold = echo.submit, True

            def accept_and_fail(request: InferRequest, trace: object = None) -> None:
                echo.submit = accept  # type: ignore[method-assign]
                accept(request)
                if answered_first:
                    echo.answer(request)
                raise RuntimeError("unexpected")

            client.send(infer(1))
            first = await echo.held.get()
            echo.submit = accept_and_fail  # type: ignore[method-assign]
            client.send(infer(2) + infer(3))
            for request in (await echo.held.get(), await echo.held.get(), first):
                echo.answer(request)
            answers = [await client.answer() for _ in range(3)]
            assert [status for status, _, _ in answers] == [200, 200 if answered_first else 500, 200]
            assert [answers[0][2], answers[2][2]] == [echoed(1), echoed(3)]

    asyncio.run(scenario())
    assert len(answered_twice) == 1 + answered_first
    answered_twice.clear()


@with_server
async def test_chunked_body_is_accepted(server: Running) -> None:
    for size in (1, 7, 1000):
        assert (await server.ask(chunked(infer(1, 2, 3), size)))[2] == echoed(1, 2, 3)


@with_server
async def test_client_that_waits_for_100_continue_receives_it(server: Running) -> None:
    client = await server.connect()
    head, end, body = infer(5, headers="Expect: 100-continue\r\n").partition(b"\r\n\r\n")
    client.send(head + end)
    assert (await client.answer())[0] == 100
    client.send(body)
    assert (await client.answer())[2] == echoed(5)


@with_server
async def test_http_1_0_connection_is_closed_without_keep_alive(server: Running) -> None:
    client = await server.connect()
    client.send(infer(1, version="1.0", headers="Connection: keep-alive\r\n"))
    _, headers, body = await client.answer()
    assert (headers["connection"].lower(), body) == ("keep-alive", echoed(1))
    client.send(infer(2, version="1.0"))
    assert (await client.answer())[2] == echoed(2)
    assert await client.closed()


@pytest.mark.parametrize("request_", [infer(1, headers="Connection: close\r\n"), LIVE + b"Connection: close\r\n\r\n"])
def test_connection_is_closed_on_request(request_: bytes) -> None:
    async def scenario() -> None:
        async with running() as server:
            client = await server.connect()
            client.send(request_)
            status, headers, _ = await client.answer()
            assert (status, headers["connection"]) == (200, "close")
            assert await client.closed()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "nonsense",
    [
        b"NONSENSE\r\n\r\n",
        LIVE + b"Content-Length: x\r\n\r\n",
        LIVE + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        LIVE + b"X: " + b"a" * 400_000,
    ],
    ids=["request line", "length", "two lengths", "endless header"],
)
def test_unparsable_input_closes_the_connection(nonsense: bytes) -> None:
    async def scenario() -> None:
        async with running() as server:
            client = await server.connect()
            client.send(nonsense)
            async with asyncio.timeout(30):
                try:
                    answer = await client.reader.read()
                except ConnectionResetError:
                    answer = b""
            assert b" 200 " not in answer

    asyncio.run(scenario())


def test_body_beyond_the_limit_is_refused() -> None:
    async def scenario() -> None:
        async with running(max_body_size=1000) as server:
            for request in (infer(*range(1000)), chunked(infer(*range(1000)), 100)):
                client = await server.connect()
                client.send(request)
                status, _, _ = await client.answer()
                assert status in (400, 413)
            assert (await server.ask(infer(1)))[2] == echoed(1)

    asyncio.run(scenario())


@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 400)])
def test_body_size_limit_applies_after_decompression(size: int, status: int) -> None:
    async def scenario() -> None:
        async with running(max_body_size=1000) as server:
            body = gzip.compress(infer(1).partition(b"\r\n\r\n")[2].ljust(size))
            head = b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
            assert (await server.ask(head % len(body) + body))[0] == status

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["BREW", "CONNECT"])
@pytest.mark.parametrize(("path", "status"), [("/v2", 405), ("/v2/models/echo/infer", 405), ("/nowhere", 404)])
def test_unknown_method_is_refused_by_the_route(method: str, path: str, status: int) -> None:
    async def scenario() -> None:
        async with running() as server:
            answer = await server.ask(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert answer[0] == status

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "POST"])
def test_options_request_for_the_whole_server_has_no_route(method: str) -> None:
    async def scenario() -> None:
        async with running() as server:
            request = f"{method} * HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
            assert (await server.ask(request.encode()))[0] == 404

    asyncio.run(scenario())


@with_server
async def test_tab_before_a_header_value_is_whitespace(server: Running) -> None:
    asked = infer(1).replace(b"Content-Length: ", b"Content-Length:\t").replace(b"Host: ", b"Host: \t")
    assert b"\t" in asked
    for _ in range(2):  # the second time it is a head that was read before
        assert (await server.ask(asked))[2] == echoed(1)


@with_server
async def test_disconnected_client_cancels_its_request(server: Running) -> None:
    server.echo.hold = True
    client = await server.connect()
    client.send(infer(1))
    async with asyncio.timeout(30):
        request = await server.echo.held.get()
        client.writer.close()
        assert await server.echo.cancelled.get() is request
    server.echo.answer(request)  # too late: the client has disconnected


@with_server
async def test_completed_request_is_not_cancelled(server: Running) -> None:
    client = await server.connect()
    client.send(infer(1))
    await client.answer()
    client.writer.close()
    assert (await server.ask(infer(2)))[2] == echoed(2)
    assert server.echo.cancelled.empty()


@with_server
async def test_stopping_waits_for_answers_in_progress(server: Running) -> None:
    server.echo.hold = True
    client = await server.connect()
    client.send(infer(1))
    async with asyncio.timeout(30):
        request = await server.echo.held.get()
        stopping = asyncio.create_task(server.endpoint.stop(10))
        for _ in range(10):
            await asyncio.sleep(0)
        server.echo.answer(request)
        assert (await client.answer())[2] == echoed(1)
        await stopping
    with pytest.raises(OSError):  # noqa: PT011 - the kind depends on the platform
        await server.connect()


@with_server
async def test_port_in_use_is_reported(server: Running) -> None:
    options = HttpOptions()
    second = HttpEndpoint(cast("Any", OneModel()), host="127.0.0.1", options=options)
    with pytest.raises(OSError, match="in use"):
        await second.start(server.endpoint.port)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Host: localhost:8000\r\n", 200),
        ("Host: 127.0.0.1\r\n", 200),
        ("Host: [::1]:8000\r\n", 200),
        ("Host: evil.example\r\n", 403),
        ("Host: localhost.evil.example\r\n", 403),
        ("Host: evil.example@localhost\r\n", 403),
        ("Host: localhost?evil.example\r\n", 403),
        ("Host: localhost\r\nOrigin: http://localhost:8888\r\n", 200),
        ("Host: localhost\r\nOrigin: https://evil.example\r\n", 403),
        ("Host: localhost\r\nOrigin: null\r\n", 403),
    ],
)
def test_requests_from_other_hosts_and_origins_are_refused(headers: str, status: int) -> None:
    async def scenario() -> None:
        async with running() as server:
            for path in ("GET /v2/health/live", "POST /v2/models/echo/infer"):
                body = infer(1).partition(b"\r\n\r\n")[2] if path.startswith("POST") else b""
                head = f"{path} HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
                assert (await server.ask(head.encode() + body))[0] == status

    asyncio.run(scenario())


def test_foreign_host_names_are_accepted_if_allowed() -> None:
    async def scenario() -> None:
        request = b"GET /v2/health/live HTTP/1.1\r\nHost: %s\r\n\r\n"
        async with running(allow_foreign=True) as server:
            assert (await server.ask(request % b"evil.example"))[0] == 200
        async with running(allowed_hosts=("lab.example",)) as server:
            assert (await server.ask(request % b"lab.example"))[0] == 200
            assert (await server.ask(request % b"evil.example"))[0] == 403

    asyncio.run(scenario())


def test_large_responses_arrive_complete() -> None:
    async def scenario() -> None:
        values = range(300_000)
        async with running() as server:
            assert (await server.ask(infer(*values)))[2] == echoed(*values)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("target", "status", "error"),
    [
        (b"/v2/\xc3\xa9", 404, "Not Found"),
        (b"/v2/models/\xc3\xa9/infer", 404, "Request for unknown model: 'é' is not found"),
        (b"/v2/models/\xff", 404, "Not Found"),
        (b"/v2/models/\xff/infer", 404, "Not Found"),
        (b"/v2/models/echo/versions/\xd9\xa3/infer", 404, "Not Found"),
    ],
)
def test_non_utf8_request_target_has_no_route(target: bytes, status: int, error: str) -> None:
    async def scenario() -> None:
        method = b"POST" if target.endswith(b"/infer") else b"GET"
        async with running() as server:
            client = await server.connect()
            client.send(method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            received, _, body = await client.answer()
            assert (received, json.loads(body)) == (status, {"error": error})
            client.send(infer(1))
            assert (await client.answer())[2] == echoed(1)

    asyncio.run(scenario())


@with_server
async def test_query_may_contain_any_bytes(server: Running) -> None:
    assert (await server.ask(infer(1, path="/v2/models/echo/infer?é")))[2] == echoed(1)
    answer = await server.ask(b"GET /v2/health/live?\xff HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length:",
        b"Transfer-Encoding: gzip",
        b"X : a",
        b"X: a\x00b",
    ],
)
def test_ambiguous_heads_are_refused(headers: bytes) -> None:
    async def scenario() -> None:
        async with running() as server:
            client = await server.connect()
            client.send(
                b"POST /v2/health/live HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
            )
            async with asyncio.timeout(30):
                assert b" 405 " not in await client.reader.read()

    asyncio.run(scenario())


def test_application_refusal_of_a_head_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(allow_foreign=True) as server:
            client = await server.connect()
            client.send(b"GET /v2/health/live HTTP/1.1\r\nHost: a?b\r\n\r\n")
            async with asyncio.timeout(30):
                assert (await client.reader.readline()).startswith(b"HTTP/1.1 400 ")

    asyncio.run(scenario())
    assert not [record for record in caplog.records if record.exc_info]
