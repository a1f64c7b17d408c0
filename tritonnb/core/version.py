"""The version of this package, and of the Triton release that it reproduces."""

VERSION = "0.1.0"

#: The Triton release whose wire behaviour is implemented. The server metadata reports it, since clients derive
#: from it what the server supports.
TRITON_VERSION = "2.51.0"
