"""Attributes of a class that the packages above it provide.

A recording is data; the figures and widgets that show it are in higher layers, which its package does not know. The
class declares the attribute, and the higher layer registers its provider, as pandas does with accessors. A module is
imported when an attribute that it provides is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar

from tritonnb.core.browser import missing_package

C = TypeVar("C", bound=type)

#: The accessors of classes that have not been defined yet, by ``module:class``.
_registered: dict[str, dict[str, Accessor]] = {}


class Accessor:
    """A placeholder for an attribute until it is used; it then replaces itself on the class.

    Parameters
    ----------
    target : str
        ``module:name`` of a function, which gets the object as its first argument.
    kind : callable, optional
        ``property``, ``cached_property`` or ``staticmethod`` for an attribute that is not a method.
    """

    def __init__(self, target: str, kind: Callable[[Any], Any] | None = None) -> None:
        self.target = target
        self._kind = kind

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type) -> Any:
        module, _, function = self.target.partition(":")
        try:
            provided = getattr(import_module(module), function)
        except ImportError as error:
            raise missing_package(f"{self._owner.__name__}.{self._name}", error) from None
        attribute = provided if self._kind is None else self._kind(provided)
        if isinstance(attribute, cached_property):  # Python tells it its name only in the body of a class
            attribute.__set_name__(self._owner, self._name)
        setattr(self._owner, self._name, attribute)
        return getattr(owner if instance is None else instance, self._name)


def extensible(cls: C) -> C:
    """Decorate a class with attributes that packages above it provide; it declares each with an annotation."""
    for name, accessor in _registered.pop(f"{cls.__module__}:{cls.__qualname__}", {}).items():
        setattr(cls, name, accessor)
        accessor.__set_name__(cls, name)
    return cls


def register(owner: str, accessors: Mapping[str, Accessor]) -> None:
    """Register attributes of a class that has not been defined yet.

    Parameters
    ----------
    owner : str
        ``module:class`` of a class with the decorator `extensible`.
    accessors : mapping of str to Accessor
        By the name of the attribute.
    """
    _registered.setdefault(owner, {}).update(accessors)
