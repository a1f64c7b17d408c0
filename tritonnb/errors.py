"""The exceptions that functions, methods and servers of this package raise.

Each carries one of Triton's status codes, from which its HTTP or gRPC status follows. A backend raises them, or passes
them to `Execution.fail`, to send an error with that status to the client.

>>> from tritonnb.errors import NotFoundError, TritonError
>>> try:
...     raise NotFoundError("model 'digit': expected the name of a model in the repository")
... except TritonError as error:
...     print(error.status.label)
Not found
"""

from tritonnb.core.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Status,
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from tritonnb.model_config.load import ConfigError
from tritonnb.model_config.tokens import ConfigSyntaxError

__all__ = [
    "AlreadyExistsError",
    "CancelledError",
    "ConfigError",
    "ConfigSyntaxError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "Status",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
]
