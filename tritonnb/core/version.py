"""Versions: our own, and that of the Triton whose behaviour this is."""

VERSION = "0.1.0"

#: The Triton release whose wire behaviour is implemented; what the server metadata reports, since
#: clients read it to know what they may ask for.
TRITON_VERSION = "2.51.0"
