"""A model of a remote server: its address, configuration and statistics, over HTTP or gRPC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable
from urllib.parse import unquote

from tritonnb.client.applied_config import is_same, with_previous
from tritonnb.client.options import ConnectionOptions
from tritonnb.client.v2_client import V2Client, make_client, model_path
from tritonnb.core.errors import InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.read import config_json
from tritonnb.telemetry.statistics_entry import StatisticsEntry

#: The accepted URLs; without a scheme the protocol is HTTP or given by ``over``.
_URL = re.compile(
    r"(?:(?P<scheme>\w+)://)?(?P<authority>[^/\s]+)(?P<prefix>(?:/[^\s]*?)??)"
    r"(?:/v2(?:/models/(?P<name>[^/\s]+)(?:/versions/(?P<version>\d+))?)?)?/?"
)
_FORMS = "expected HOST:PORT, http://HOST:PORT or grpc://HOST:PORT, with /v2/models/NAME or with the model's name"
_PROTOCOLS = {"http": "http", "https": "http", "grpc": "grpc", "grpcs": "grpc"}
#: What Triton responds to a load request unless it was started with explicit model control.
_NOT_EXPLICIT = "explicit model load / unload is not allowed"


@dataclass(frozen=True)
class ModelAddress:
    """A model of a server of the v2 protocol.

    Attributes
    ----------
    server : V2Client
    name : str
    version : int
        -1 lets the server choose.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server("model_repository", port=0, model_control_mode="explicit") as server:
    ...     _ = server.load("identity_fp32")
    ...     address = ModelAddress.parse(server.url, "identity_fp32")
    ...     config = address.config()
    ...     config.instance_group[0].count = 2
    ...     print(address.apply(config), address.config().instance_group[0].count)
    ...     print(address.restore(), address.config().instance_group[0].count)
    ...     address.reload()
    ...     print(address.stats()["inference_count"])
    reloaded 2
    reloaded 1
    0
    >>> address.sibling("add_sub", 1).path
    '/v2/models/add_sub/versions/1'
    """

    server: V2Client
    name: str
    version: int = -1

    @classmethod
    def parse(cls, url: str, name: str | None = None, over: str | None = None) -> ModelAddress:
        """Read a URL, with or without a scheme and the path of a model.

        Parameters
        ----------
        url : str
        name : str, optional
            Name of the model, if the URL does not contain it and the server has several models.
        over : str, optional
            ``"http"`` or ``"grpc"``, for a URL without a scheme.

        Raises
        ------
        InvalidArgumentError
            If it is not such a URL, contradicts ``name`` or ``over``, or does not name one of several models.
        UnavailableError
            If no server responds at the URL.
        """
        parts = _URL.fullmatch(url) if isinstance(url, str) else None
        scheme = "" if parts is None else (parts["scheme"] or over or "http").lower()
        if parts is None or scheme not in _PROTOCOLS:
            raise InvalidArgumentError(f"URL {url!r}: {_FORMS}")
        protocol = _PROTOCOLS[scheme]
        if over not in (None, protocol):
            raise InvalidArgumentError(
                f"over expected '{protocol}' for the URL '{url}', got '{over}': change one of them"
            )
        if protocol == "grpc" and parts["prefix"]:
            raise InvalidArgumentError(f"URL '{url}': {_FORMS}")
        named = unquote(parts["name"] or "")
        if named and name not in (None, named):
            raise InvalidArgumentError(f"name expected '{named}' for the URL '{url}', got '{name}': give one of them")
        server = make_client(scheme, parts["authority"], parts["prefix"], ConnectionOptions())
        return cls(server, named or name or only_model_name(server), int(parts["version"] or -1))

    @staticmethod
    def split(url: str) -> tuple[str, str, str]:
        """Split the URL of a server into scheme, ``HOST:PORT``, and the path before ``/v2``.

        Parameters
        ----------
        url : str
            With or without a scheme.

        Raises
        ------
        InvalidArgumentError
            If it is not the URL of a server.

        Examples
        --------
        >>> ModelAddress.split("triton:8000")
        ('http', 'triton:8000', '')
        """
        parts = _URL.fullmatch(url) if isinstance(url, str) else None
        scheme = "" if parts is None else (parts["scheme"] or "http").lower()
        if parts is None or scheme not in _PROTOCOLS or parts["name"]:
            raise InvalidArgumentError(
                f"URL of a server expected http://HOST:PORT, https://…, grpc://HOST:PORT or grpcs://…, got {url!r}"
            )
        return scheme, parts["authority"], parts["prefix"]

    @property
    def protocol(self) -> str:
        """``http`` or ``grpc``."""
        return _PROTOCOLS[self.server.scheme]

    @property
    def path(self) -> str:
        """Path of the model in an HTTP URL."""
        return f"{self.server.prefix}/v2{model_path(self.name, self.version)}"

    @property
    def url(self) -> str:
        """The URL of the model."""
        return f"{self.server.url}/v2{model_path(self.name, self.version)}"

    def sibling(self, name: str, version: int) -> ModelAddress:
        """Return another model of the same server.

        Parameters
        ----------
        name : str
        version : int
            -1 lets the server choose.
        """
        return replace(self, name=name, version=version)

    def config(self) -> pb.ModelConfig:
        """Return the model's configuration.

        Raises
        ------
        TritonError
            If the server responds with an error, for example for an unknown model.
        UnavailableError
            If no server responds.
        """
        return self.server.config(self.name, self.version)

    def stats(self) -> StatisticsEntry:
        """Return the entry of the model in the statistics extension; errors as `config`."""
        return self.server.statistics(self.name, self.version)[-1]

    def apply(self, config: pb.ModelConfig) -> str:
        """Load the model with another configuration, through the load API, unless it runs that configuration already.

        The server keeps the previous configuration for `restore`.

        Parameters
        ----------
        config : ModelConfig

        Returns
        -------
        str
            ``"unchanged"`` or ``"reloaded"``.

        Raises
        ------
        UnsupportedError
            If the server was not started with explicit model control.
        TritonError
            If the server rejects the configuration; the model continues unchanged.
        """
        running = self.config()
        if is_same(config, running):
            return "unchanged"
        previous = self.server.previous_config(self.name)
        previous = running if previous is None else previous
        applied = config if is_same(config, previous) else with_previous(config, previous)
        with self._model_control():
            self.server.load(self.name, config_json(applied))
        return "reloaded"

    def restore(self) -> str:
        """Load the model with the configuration that it had before another was applied, by whichever process.

        Returns
        -------
        str
            ``"unchanged"`` if no other was applied, or ``"reloaded"``.

        Raises
        ------
        TritonError
            As `apply`.
        """
        previous = self.server.previous_config(self.name)
        return "unchanged" if previous is None else self.apply(previous)

    def reload(self) -> None:
        """Unload the model, and load it with the configuration in the repository of the server.

        Raises
        ------
        TritonError
            As `apply`.
        """
        with self._model_control():
            self.server.unload(self.name)
            self.server.load(self.name)

    @contextmanager
    def _model_control(self) -> Iterator[None]:
        """Explain that a server does not permit loading and unloading."""
        try:
            yield
        except TritonError as error:
            if _NOT_EXPLICIT in error.message:
                raise UnsupportedError(
                    f"model '{self.name}': {self.server.url} accepts no configurations: "
                    "start that server with --model-control-mode=explicit"
                ) from None
            raise


def only_model_name(server: V2Client) -> str:
    """Return the name of the only model of a server.

    Raises
    ------
    InvalidArgumentError
        If several models are ready, or none.
    """
    names = sorted(server.ready_models())
    if len(names) != 1:
        listed = ", ".join(map(repr, names)) or "none"
        raise InvalidArgumentError(
            f"URL of a model expected {server.url}/v2/models/NAME, got {server.url}: models ready there: {listed}"
        )
    return names[0]


@runtime_checkable
class Addressed(Protocol):
    """A model of a connection, or a connection with several models."""

    def address_of(self, name: str | None) -> ModelAddress:
        """Return the address of a model, or without a name the address of the only model."""
