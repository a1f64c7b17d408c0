"""The HTTP/REST endpoint: inference requests are handled here directly, all others by a Tornado application.

Nearly every request of a server is an inference request, so its route bypasses the web framework: the body goes
directly to the request reader, and the response is sent with one write.
"""

from __future__ import annotations

from tritonnb.endpoints.endpoint import Endpoint
from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.application import make_application
from tritonnb.endpoints.http.inference import HttpRequestHandler, InferenceServices
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.request_reader import RequestReader
from tritonnb.endpoints.http.transport.exchange import Exchange
from tritonnb.endpoints.http.transport.server import HttpServer, application_delegate
from tritonnb.endpoints.openai.endpoint import rules
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.endpoints.request_rules import compile_forward_pattern
from tritonnb.runtime.engine import Engine


class HttpEndpoint(Endpoint):
    """The HTTP endpoint of an engine, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    options : HttpOptions
    openai : OpenAiOptions, optional
        Serve OpenAI's API, too, under ``/v1``.
    """

    def __init__(self, engine: Engine, *, host: str, options: HttpOptions, openai: OpenAiOptions | None = None) -> None:
        transport = HttpServer(self.start_request, max_body_size=options.max_body_size, reuse_port=options.reuse_port)
        super().__init__(host, transport)
        self.admission = Admission(options, host)
        self.forward_pattern = compile_forward_pattern(options.header_forward_pattern)
        self.has_openai = openai is not None
        others = [] if openai is None else rules(engine, options.max_input_size, self.admission, openai)
        self.start_in_application = application_delegate(make_application(engine, options.max_input_size, others))
        reader = RequestReader(engine.shared_memory, options.max_input_size)
        self.services = InferenceServices(
            engine.table, engine.tracer, reader, options.max_input_size, options.max_body_size
        )

    @property
    def url(self) -> str:
        """The URL of the endpoint for programs on this machine."""
        host = "127.0.0.1" if self.host in ("", "0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def start_request(self, exchange: Exchange) -> HttpRequestHandler:
        """Make the delegate of a new request."""
        return HttpRequestHandler(self, exchange)
