"""Who may send requests to an HTTP endpoint: the checks of hosts, origins and restricted APIs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tritonnb.endpoints.http.handlers.metadata import JSON, TEXT
from tritonnb.endpoints.http.host_origin_check import HostOriginCheck
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.restrictions import Restrictions
from tritonnb.endpoints.http.routes import ROUTES, Route


@dataclass(frozen=True, slots=True)
class Admission:
    """The checks that every request to an endpoint passes, whichever way it comes.

    Attributes
    ----------
    host_origin_check : HostOriginCheck or None
        None to accept all hosts and origins.
    restrictions : Restrictions
    """

    host_origin_check: HostOriginCheck | None
    restrictions: Restrictions

    @classmethod
    def of(cls, options: HttpOptions, host: str | None, routes: Sequence[Route] = ROUTES) -> Admission:
        """The checks of an endpoint.

        Parameters
        ----------
        options : HttpOptions
        host : str or None
            The address that it listens on; None, if that is not known, to accept all hosts and origins.
        routes : sequence of Route, optional
        """
        check = None
        if host is not None and not options.allow_foreign:
            check = HostOriginCheck(host, options.allowed_hosts)
        return cls(check, Restrictions(options.restricted_api, routes))

    def refusal(self, target: str, header: Callable[[str], str | None]) -> tuple[str, str] | None:
        """The reason why a request is refused with status 403, and the content type of the response; None to accept it.

        Parameters
        ----------
        target : str
            The path as the client sent it, with or without the query.
        header : callable
            Returns the value of a header, or None.
        """
        if self.host_origin_check is not None:
            foreign = self.host_origin_check.refusal(header("Host"), header("Origin"))
            if foreign is not None:
                return foreign, JSON
        restricted = self.restrictions.refusal(target, header)
        return None if restricted is None else (restricted, TEXT)
