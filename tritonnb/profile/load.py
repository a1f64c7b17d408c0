"""`load`: traffic on a model, from a thread of its own, measured from the clients' side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.profile.examples import Inputs, Shapes, examples
from tritonnb.profile.find_model import find_model, open_target
from tritonnb.profile.remote import RemoteModel
from tritonnb.profile.running_load import Load
from tritonnb.profile.workload import workload
from tritonnb.simulation.arrivals import Arrival, ClosedLoop, require_positive

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle
    from tritonnb.server.server import Server


def load(
    model: ModelHandle | Server | RemoteModel | str,
    name: str | None = None,
    *,
    rate: float | None = None,
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None = None,
    clients: int | None = None,
    duration: float | None = None,
    requests: int | None = None,
    size: int | None = None,
    burst: int = 8,
    sequence_length: int | None = None,
    sequences: int = 4,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    over: str | None = None,
    record: bool | None = None,
    grace: float = 60.0,
    seed: int = 0,
) -> Load:
    """Send traffic to a model, in the background.

    Give ``rate`` for an open loop, ``clients`` for a closed one, or a list of arrivals.

    Parameters
    ----------
    model : ModelHandle, Server or str
        ``server["name"]``, or any server of the v2 protocol: ``http://HOST:PORT/v2/models/NAME`` or
        ``grpc://HOST:PORT/v2/models/NAME``. A server, and a URL without the path of a model, need ``name``, unless
        there is only one model. Without a scheme a URL means HTTP, or what ``over`` says.
    name : str, optional
        The model, where ``model`` does not name it.
    rate : float, optional
        Requests a second of an open loop.
    arrivals : str, iterable of Arrival or of (time in µs, rows), or ClosedLoop, optional
        How the requests of an open loop come: ``"constant"`` (the default), ``"poisson"``, ``"burst"``. Or
        a list of them, such as `Recording.arrivals` gives; what it says of shapes is not heeded.
    clients : int, optional
        Clients of a closed loop: each waits for its answer before it sends again.
    duration : float, optional
        Seconds; without it and ``requests``, traffic goes on until `Load.stop`, and the newest 100,000
        answers are kept.
    requests : int, optional
        How many, at most.
    size : int, optional
        Rows of each request; by default those of the inputs that were given, and 1 for generated ones.
    burst : int, optional
        Requests that come at once, for ``arrivals="burst"``.
    sequence_length : int, optional
        Send sequences of so many requests: each client of a closed loop one after the other, an open
        loop to ``sequences`` of them in turn. What is under way at the end is ended. By default 10 for a
        model with ``sequence_batching`` and for an ensemble with such a step, and 0, which is none, for any other.
    sequences : int, optional
        Sequences of an open loop that are under way at once.
    inputs : str, mapping or sequence of mappings, optional
        ``"random"`` or ``"zero"`` tensors made from the model's metadata, the tensors of a request by
        name, or several such, sent in turn.
    shapes : mapping of str to sequence of int, optional
        The shape to use for inputs of variable dimensions, without the batch dimension.
    over : str, optional
        ``"process"``, or ``"http"`` or ``"grpc"`` to go through the server's own socket. By default ``"process"`` for
        a model of this process, and what a URL says for others.
    record : bool, optional
        Record what the server does meanwhile; by default if the traffic has an end. Only of a server in this process.
    grace : float, optional
        Seconds without any answer after which requests that are under way count as failed, once everything is sent
        or no client of a closed loop with a number of requests is free.
    seed : int, optional
        Of random times and tensors.

    Returns
    -------
    Load
        At once; the traffic has begun.

    Raises
    ------
    InvalidArgumentError
        If the arguments contradict each other or do not fit the model.
    UnavailableError
        If no server answers at the URL, or ``over`` asks for an endpoint that the server does not have.

    Examples
    --------
    >>> load = tnb.load(server["digits"], rate=300, arrivals="poisson", duration=5, seed=1)  # doctest: +SKIP
    >>> load.wait()  # doctest: +SKIP
    """
    require_positive(grace=grace)
    source = find_model(model, name, over)
    target = open_target(source, over)
    try:
        asked = workload(
            rate=rate,
            arrivals=arrivals,
            clients=clients,
            duration=duration,
            requests=requests,
            size=size,
            burst=burst,
            sequence_length=sequence_length,
            sequences=sequences,
            seed=seed,
            stateful=target.stateful,
        )
        tensors = examples(target.spec, inputs, shapes or {}, seed)
        limit = target.spec.max_batch_size
        if size is not None and size > max(1, limit):
            raise InvalidArgumentError(f"size must be <= {max(1, limit)} for '{target.spec.name}', got {size}")
    except BaseException:
        target.close()
        raise
    recorded = asked.ends if record is None else record
    return Load(target, asked, tensors, source if recorded and not isinstance(source, RemoteModel) else None, grace)
