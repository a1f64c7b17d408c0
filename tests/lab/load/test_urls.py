"""The model that a load is for: a handle, a server and a name, or a URL with or without a scheme and a path."""

from __future__ import annotations

from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.server.server import Server


def addresses(server: Server) -> list[tuple[str, dict[str, Any]]]:
    http, grpc = f"127.0.0.1:{server.port}", f"127.0.0.1:{server.grpc_port}"
    return [
        (f"http://{http}/v2/models/held", {}),
        (f"http://{http}/v2/models/held/versions/1", {}),
        (f"{http}/v2/models/held", {}),
        (f"http://{http}", {"name": "held"}),
        (f"http://{http}/v2/", {"name": "held"}),
        (http, {"name": "held"}),
        (http, {"name": "held", "over": "http"}),
        (f"grpc://{grpc}/v2/models/held", {}),
        (f"grpc://{grpc}", {"name": "held"}),
        (grpc, {"name": "held", "over": "grpc"}),
        (f"{grpc}/v2/models/held", {"over": "grpc"}),
    ]


def test_load_accepts_the_url_of_any_v2_server(server: Server) -> None:
    for url, options in addresses(server):
        result = tnb.load(url, clients=2, requests=10, **options).wait(60)
        assert (result.requests, result.errors, result.recording) == (10, {}, None), url


def test_server_and_model_name_are_accepted_as_model(server: Server) -> None:
    result = tnb.load(server, "held", clients=2, requests=10).wait(60)
    assert (result.requests, result.recording is None) == (10, False)


def test_server_with_one_model_needs_no_name() -> None:
    with Server(port=0, grpc_port=0) as server:

        @server.model
        def only(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X

        for model in (server, server.url, f"grpc://127.0.0.1:{server.grpc_port}"):
            assert tnb.load(model, clients=1, requests=3).wait(60).errors == {}


def test_wrong_urls_are_named(server: Server) -> None:
    url, grpc = server.url, f"grpc://127.0.0.1:{server.grpc_port}"
    table: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        (
            (url,),
            {},
            InvalidArgumentError,
            "URL of a model expected http://.*/v2/models/NAME, got .*: models ready there:",
        ),
        ((grpc,), {}, InvalidArgumentError, "URL of a model expected grpc://.* 'accumulate', 'held'"),
        ((server,), {}, InvalidArgumentError, r"expected server\['NAME'\] with one of the models 'accumulate', 'held'"),
        ((f"{url}/v2/models/missing_model",), {}, InvalidArgumentError, "unknown model: 'missing_model'"),
        ((grpc, "missing_model"), {}, InvalidArgumentError, "unknown model: 'missing_model'"),
        (("http://127.0.0.1:9/v2/models/m",), {}, UnavailableError, "no HTTP server of the v2 protocol responds"),
        (("grpc://127.0.0.1:9/v2/models/m",), {}, UnavailableError, "no gRPC server responds at grpc://127.0.0.1:9"),
        (
            ("ftp://127.0.0.1:9/v2/models/m",),
            {},
            InvalidArgumentError,
            "URL 'ftp://.*expected HOST",
        ),
        (
            (f"{url}/v2/models/held", "other"),
            {},
            InvalidArgumentError,
            "name expected 'held' for the URL .*, got 'other'",
        ),
        ((server["held"], "other"), {}, InvalidArgumentError, "name expected 'held', .* got 'other'"),
        (
            (f"{url}/v2/models/held",),
            {"over": "grpc"},
            InvalidArgumentError,
            "over expected 'http' for the URL .* got 'grpc'",
        ),
        (
            (f"{url}/v2/models/held",),
            {"over": "process"},
            InvalidArgumentError,
            "over='process' expected a model of this process",
        ),
        (
            (server["held"],),
            {"over": "mail"},
            InvalidArgumentError,
            "over expected 'process', 'http' or 'grpc', got 'mail'",
        ),
        ((server["held"],), {"rows": 9}, InvalidArgumentError, "rows for model 'held' expected at most 8"),
        ((server["held"],), {"grace": 0}, InvalidArgumentError, "grace must be positive, got 0"),
    ]
    for arguments, options, error, text in table:
        with pytest.raises(error, match=text):
            tnb.load(*arguments, clients=1, requests=1, **options)
