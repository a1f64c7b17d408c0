"""The version of this package, and of the Triton release that it reproduces."""

VERSION = "0.1.0"

#: The Triton release (container release 26.07) whose wire behaviour is implemented. The server metadata reports it,
#: since clients derive from it what the server supports.
TRITON_VERSION = "2.71.0"
