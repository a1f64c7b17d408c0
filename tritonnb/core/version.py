"""The versions of this package, of the Triton release that it reproduces, and of other packages."""

#: A version in development ends in `.dev0`; a released version has a tag of the same name (*RELEASING.md*).
VERSION = "0.1.0.dev0"
__version__ = VERSION

#: The Triton release whose wire behaviour is implemented. The server metadata reports it, since clients derive from it
#: what the server supports.
TRITON_VERSION = "2.75.0"
#: The same release, as NVIDIA's containers name it.
TRITON_CONTAINER = "26.11"


def installed_version(package: str) -> str:
    """Return the version of a package; empty if it is not installed."""
    from importlib import metadata  # few programs need it

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
