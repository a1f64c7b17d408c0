"""The admission of requests: which hosts and origins are this machine, for each address that an endpoint listens on."""

from __future__ import annotations

import pytest

from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.options import HttpOptions


@pytest.mark.parametrize(
    ("bound", "host", "origin", "accepted"),
    [
        ("127.0.0.1", "127.0.0.1:8000", "http://127.0.0.1:8888", True),
        ("127.0.0.1", "127.0.0.1:8000", "http://6.6.6.6", False),
        ("127.0.0.1", "6.6.6.6", None, False),
        ("0.0.0.0", "10.0.0.5:8000", None, True),
        # A notebook's page on the same machine, on another port.
        ("0.0.0.0", "10.0.0.5:8000", "http://10.0.0.5:8888", True),
        # A page of another numeric address is no page of this machine.
        ("0.0.0.0", "10.0.0.5:8000", "http://6.6.6.6", False),
        ("0.0.0.0", "localhost:8000", "http://6.6.6.6", False),
        ("10.0.0.5", "10.0.0.5:8000", "http://[2001:db8::1]", False),
        ("10.0.0.5", "10.0.0.5:8000", "http://localhost:8888", True),
        ("::", "[2001:db8::1]:8000", "http://[2001:db8::1]:8888", True),
    ],
)
def test_numeric_origin_is_the_address_of_the_request(
    bound: str, host: str, origin: str | None, accepted: bool
) -> None:
    headers = {"Host": host, "Origin": origin}
    refusal = Admission(HttpOptions(), bound).refusal("/v2/health/live", headers.get)
    assert (refusal is None) == accepted
