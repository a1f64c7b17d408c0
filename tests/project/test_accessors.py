"""Attributes that upper packages provide: each is declared by its class, documented, and imported when it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from typing import Any, ClassVar

import pytest

import tritonnb as tnb
from tritonnb.accessors import ACCESSORS
from tritonnb.core.accessors import Accessor, extensible, register

REGISTERED = [(owner, name) for owner, accessors in ACCESSORS.items() for name in accessors]


def class_of(owner: str) -> type:
    module, _, name = owner.partition(":")
    cls = getattr(import_module(module), name)
    assert isinstance(cls, type)
    return cls


def declared(cls: type) -> set[str]:
    """Names that a class, or a base of it, annotates as variables of the class."""
    annotations = [item for base in cls.__mro__ for item in inspect.get_annotations(base).items()]
    return {name for name, kind in annotations if "ClassVar" in str(kind)}


@pytest.mark.parametrize(("owner", "name"), REGISTERED)
def test_accessor_is_declared_found_and_documented(owner: str, name: str) -> None:
    cls = class_of(owner)
    assert name in declared(cls)
    assert name in dir(cls)
    assert inspect.getdoc(getattr(cls, name))


@pytest.mark.parametrize("owner", ACCESSORS)
def test_every_declared_attribute_is_registered(owner: str) -> None:
    assert declared(class_of(owner)) == ACCESSORS[owner].keys()


def test_accessors_import_their_packages_at_first_use() -> None:
    program = """
import sys
from tritonnb.recording.recording import Recording
assert "plot" in dir(Recording)
before = {name for name in ("matplotlib", "ipywidgets") if name in sys.modules}
Recording.plot
print(sorted(before), "matplotlib" in sys.modules, "ipywidgets" in sys.modules)
"""
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert output == "[] True False\n"


def shout(value: Any, mark: str = "!") -> str:
    """Shout it."""
    return f"{value.word}{mark}"


def test_methods_are_bound_and_properties_computed() -> None:
    name = f"{__name__}:test_methods_are_bound_and_properties_computed.<locals>.Word"
    target = f"{__name__}:shout"
    register(
        name, {"loud": Accessor(target, property), "shout": Accessor(target), "plain": Accessor(target, staticmethod)}
    )

    @extensible
    class Word:
        word = "no"
        loud: ClassVar[Any]
        shout: ClassVar[Any]
        plain: ClassVar[Any]

    assert (Word().loud, Word().shout("?"), Word.plain(Word(), ".")) == ("no!", "no?", "no.")
    assert (Word().loud, Word().shout(mark="?"), Word.shout.__doc__) == ("no!", "no?", "Shout it.")


def test_recordings_have_figures_of_their_events() -> None:
    rec = tnb.simulate("max_batch_size: 2 dynamic_batching { }", [(0, 1), (0, 1)], tnb.fixed(5))
    assert "2 requests ran in 2 batches" in rec.plot().alt
    with pytest.raises(AttributeError, match="no attribute 'figure'"):
        rec.figure  # type: ignore[attr-defined]  # noqa: B018
