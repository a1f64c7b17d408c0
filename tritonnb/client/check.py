"""Find changes that clients made to a server, if the protocol shows them, and undo them; find its known defects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tritonnb.client.address import ModelAddress
from tritonnb.client.known_defects import known_defects
from tritonnb.client.trace_state import clear_settings, describe_model_tracing, describe_server_tracing
from tritonnb.client.v2_client import V2Client
from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.failures import warn
from tritonnb.model_config.diff import describe_changes
from tritonnb.model_config.normalize import without_defaults

#: A server with many models is asked about several of them at a time.
_CONCURRENT = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """A setting of a server that a client has changed, or a known defect that a model meets.

    Attributes
    ----------
    text : str
    model : str
        Empty for the server, and for what cannot be undone.
    undo : callable or None
        Puts it back; None for what no connection of this package changes.
    undone : str
        What is the case then.
    is_defect : bool
        Whether it is a known defect of the server's release.
    """

    text: str
    model: str = ""
    undo: Callable[[], object] | None = None
    undone: str = ""
    is_defect: bool = False

    def __str__(self) -> str:
        return self.text if self.undo is None else f"{self.text}; remote.restore('{self.model}') undoes that"


def findings(
    server: V2Client, extensions: Sequence[str], name: str | None = None, *, version: str = ""
) -> list[Finding]:
    """Find changes of one model or all, if the server has the necessary extensions.

    Parameters
    ----------
    server : V2Client
    extensions : sequence of str
    name : str, optional
    version : str, optional
        The version of the server, to find its known defects too.

    Raises
    ------
    TritonError
        If the server does not respond, or does not permit it.
    """
    names = server.ready_models() if "model_repository" in extensions else []
    models = [ModelAddress(server, model) for model in names if name in (None, model)]
    traced = find_tracing(server, models) if "trace" in extensions else []
    if "model_configuration" not in extensions:
        return traced
    return traced + find_configs(models) + (find_defects(models, version) if version else [])


def find_defects(models: Sequence[ModelAddress], version: str) -> list[Finding]:
    """Find the known defects of a version that the configurations of models meet; errors as `findings`."""

    def describe(model: ModelAddress) -> str:
        return "; ".join(map(str, known_defects(model.config(), version)))

    return [
        Finding(f"model '{model.name}', known defect of Triton {version}: {text}", is_defect=True)
        for model, text in _described(describe, models)
    ]


def find_tracing(server: V2Client, models: Sequence[ModelAddress]) -> list[Finding]:
    """Find active tracing, of all models and of models with their own settings; errors as `findings`."""
    shared = server.trace_settings()

    def describe(model: ModelAddress) -> str:
        return describe_model_tracing(model.name, server.trace_settings(model.name), shared)

    of_server = [Finding(text) for text in filter(None, [describe_server_tracing(shared)])]
    return of_server + [
        Finding(text, model.name, partial(clear_settings, server, model.name), "its trace settings are the server's")
        for model, text in _described(describe, models)
    ]


def find_configs(models: Sequence[ModelAddress]) -> list[Finding]:
    """Find the models that run a configuration that was applied over the network; errors as `findings`."""
    return [
        Finding(f"model '{model.name}' {text}", model.name, model.restore, "its configuration is the one before")
        for model, text in _described(describe_applied_config, models)
    ]


def describe_applied_config(model: ModelAddress) -> str:
    """Describe the configuration of a model if it was applied over the network; empty otherwise."""
    previous = model.server.previous_config(model.name)
    if previous is None:
        return ""
    changes = describe_changes(without_defaults(previous), without_defaults(model.config()))
    return f"runs a configuration that was applied over the network ({changes})" if changes else ""


def warn_of(url: str, found: Iterable[Finding]) -> None:
    """Issue one warning with the findings that can be put back, and the known defects."""
    texts = [str(finding) for finding in found if finding.undo is not None or finding.is_defect]
    if texts:
        warn("\n  ".join([f"{url}:", *texts]))


def put_back(found: Iterable[Finding]) -> list[str]:
    """Put back what was found; say what is the case now.

    Raises
    ------
    UnavailableError
        If something could not be put back; everything else is.
    """
    done, failures = [], []
    for finding in found:
        if finding.undo is None:
            continue
        try:
            finding.undo()
            done.append(f"model '{finding.model}': {finding.undone}")
        except TritonError as error:
            failures.append(f"model '{finding.model}' ({error.message})")
    if failures:
        raise UnavailableError(f"these models could not be restored: {', '.join(failures)}")
    return done


def _described(
    describe: Callable[[ModelAddress], str], models: Sequence[ModelAddress]
) -> list[tuple[ModelAddress, str]]:
    """Return the findings about models."""
    with ThreadPoolExecutor(_CONCURRENT, "tritonnb check") as pool:
        return [(model, text) for model, text in zip(models, pool.map(describe, models), strict=True) if text]
