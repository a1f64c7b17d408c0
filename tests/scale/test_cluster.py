"""Checks before Ray is started: its version, the ports, and the options."""

from __future__ import annotations

import socket
from importlib import metadata

import pytest

from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.endpoints.endpoint_set import PortTakenError
from tritonnb.scale.ray.application import require_ray
from tritonnb.scale.ray.cluster import check_address, free_port


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ("2.55.1", r"expected Ray 2\.56 or later, got 2\.55\.1: pip install \"tritonnb\[ray\]\""),
        ("", r"Ray Serve is not installed: pip install \"tritonnb\[ray\]\""),
    ],
)
def test_missing_or_old_ray_is_an_error(installed: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> str:
        if not installed:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", find)
    with pytest.raises(UnavailableError, match=message):
        require_ray()


def test_taken_port_is_an_error_and_the_default_is_the_next_free_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"the HTTP service cannot listen on 127.0.0.1:{port}"):
            free_port("HTTP", "127.0.0.1", port)
    assert free_port("HTTP", "127.0.0.1", 0) > 0
    assert free_port("HTTP", "127.0.0.1", None) >= 8000


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://127.0.0.1:{}/namespace"])
def test_unreachable_cluster_is_an_immediate_error(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = form.format(listening.getsockname()[1])
        check_address(address)
    with pytest.raises(UnavailableError, match=f"no Ray cluster responds at {address}: start one with 'ray start"):
        check_address(address)


@pytest.mark.parametrize("address", ["auto", "local", "other://provider"])
def test_address_that_only_ray_can_resolve_is_passed_to_ray(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "ray://head", "head:http"])
def test_address_without_a_port_is_an_error(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected 'auto', HOST:PORT or ray://HOST:PORT, got"):
        check_address(address)
