"""`tritonnb.allow_nested` uses the package that is installed, and says how to install one."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import warnings

import pytest

from tritonnb.server.nested_loop import allow_nested


class NestingPackage:
    """A stand-in for nest_asyncio or nest_asyncio2; applying the real ones would change every later event loop."""

    def __init__(self) -> None:
        self.applied = 0

    def apply(self) -> None:
        self.applied += 1


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, NestingPackage]:
    """The packages that can be imported, by name; empty at first. ipykernel is of version 7."""
    packages: dict[str, NestingPackage] = {}
    monkeypatch.setattr(importlib.util, "find_spec", packages.get)
    monkeypatch.setattr(importlib, "import_module", packages.__getitem__)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"ipykernel": "7.1.0"}[name])
    return packages


def test_maintained_package_is_preferred(installed: dict[str, NestingPackage]) -> None:
    installed |= {"nest_asyncio": NestingPackage(), "nest_asyncio2": NestingPackage()}
    with warnings.catch_warnings(action="error"):
        assert allow_nested() == "nest_asyncio2"
    assert (installed["nest_asyncio"].applied, installed["nest_asyncio2"].applied) == (0, 1)


def test_archived_nest_asyncio_warns_if_it_loses_cells(installed: dict[str, NestingPackage]) -> None:
    installed["nest_asyncio"] = NestingPackage()
    with pytest.warns(UserWarning, match="loses queued cells on ipykernel 7") as warned:
        assert allow_nested() == "nest_asyncio"
    assert [warning.filename for warning in warned] == [__file__]
    assert installed["nest_asyncio"].applied == 1


@pytest.mark.usefixtures("installed")
def test_error_names_the_extra_if_both_packages_are_missing() -> None:
    with pytest.raises(ImportError) as error:
        allow_nested()
    assert str(error.value) == (
        "allow_nested: expected nest_asyncio2 or nest_asyncio to be installed, got neither: "
        'pip install "tritonnb[nested]"'
    )
