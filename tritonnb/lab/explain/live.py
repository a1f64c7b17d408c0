"""`Remote.verdict`: what limits the models of a server, from its statistics at two times, without a trace."""

from __future__ import annotations

import math
import time

from tritonnb.client.connection import Remote, RemoteModelHandle
from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.lab.explain.explain import Explanation, answer_contents
from tritonnb.lab.explain.figures import Content
from tritonnb.lab.explain.readers import read_statistics


@with_short_traceback
@with_checked_types
def verdict(source: Remote | RemoteModelHandle, seconds: float = 10.0) -> Explanation:
    """Explain what limits the models of a server now, from its statistics before and after some seconds.

    Nothing on the server is changed, and nothing is traced. Models that nobody uses meanwhile are left out.

    Parameters
    ----------
    source : Remote or RemoteModelHandle
    seconds : float, optional
        How long to wait between both: long enough for some hundred requests.

    Returns
    -------
    Explanation

    Raises
    ------
    InvalidArgumentError
        If ``seconds`` is not a positive number.
    TritonError
        If the server does not respond.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server, tnb.connect(server.url) as remote:
    ...     @server.model(max_batch_size=4)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     load = tnb.load(server["double"], rate=50)
    ...     answer = remote.verdict(seconds=0.5)
    ...     _ = load.stop()
    ...     print(list(answer.causes))
    ['double']
    """
    try:
        is_valid = 0 < seconds < math.inf
    except TypeError:
        is_valid = False
    if not is_valid:
        raise InvalidArgumentError(f"seconds expected a positive number, got {seconds!r}")
    remote, name = (source, "") if isinstance(source, Remote) else (source.server, source.name)
    first = read_statistics("statistics before", remote.stats(name))
    begin = time.monotonic()
    time.sleep(seconds)
    last = read_statistics("statistics after", remote.stats(name))
    elapsed = time.monotonic() - begin
    used = {key for key in last.counters if last.counters[key] != first.counters.get(key)}
    answer = Explanation()
    if not used:
        subject = f"model '{name}'" if name else "any model"
        answer.sections.append((remote.url, [f"No request of {subject} ended in {elapsed:.1f} s: send some meanwhile"]))
        return answer
    for content in (first, last):
        content.counters = {key: stats for key, stats in content.counters.items() if key in used}
        content.version = remote.version
    answer_contents(answer, [first, last, *_configs(remote, last)], seconds=elapsed)
    return answer


def _configs(remote: Remote, statistics: Content) -> list[Content]:
    """Read the configurations of the models, as far as the server returns them."""
    found = []
    for name in dict.fromkeys(str(stats["name"]) for stats in statistics.counters.values()):
        content = Content("configuration", f"of model '{name}'", "instances, batcher, delay, limits")
        try:
            content.configs.append(remote.server.config(name))
        except TritonError as error:  # it may have been unloaded meanwhile, and the rest holds
            content.proves = f"nothing: {error.message}"
        found.append(content)
    return found
