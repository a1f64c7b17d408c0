"""The public names of the package: what ``tritonnb.__all__`` lists, and the classes of what they return."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import get_args, get_type_hints

import tritonnb
from tritonnb.core.accessors import Accessor

#: What a server runs on; a handle gives access to it for this package's own use.
_INTERNAL = "engine."


def public_objects() -> dict[str, object]:
    """Return the objects in ``tritonnb.__all__`` by name."""
    return {name: getattr(tritonnb, name) for name in dir(tritonnb)}


def returned_classes() -> list[type]:
    """Return the classes outside of ``tritonnb.__all__`` that public functions, methods and properties return.

    Returns
    -------
    list of type
        Sorted by name. Found through return annotations, from class to class.
    """
    waiting = [item for item in public_objects().values() if inspect.isclass(item) or inspect.isfunction(item)]
    known = {item for item in waiting if inspect.isclass(item)}
    returned: set[type] = set()
    while waiting:
        for function in _functions(waiting.pop()):
            new = set(_classes(_return_annotation(function))) - known
            known |= new
            returned |= new
            waiting += new
    return sorted(returned, key=lambda item: item.__name__)


def undocumented() -> list[str]:
    """Return the names of public functions, classes, methods and properties without a docstring."""
    items = [item for item in public_objects().values() if inspect.isclass(item) or inspect.isfunction(item)]
    documented_members = [
        (f"{item.__qualname__}.{name}", member)
        for item in (*items, *returned_classes())
        if inspect.isclass(item)
        for name, member in members_of(item).items()
        if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property))
    ]
    documented = [*((item.__qualname__, item) for item in items), *documented_members]
    return [name for name, item in documented if not inspect.getdoc(item)]


def members_of(item: object) -> dict[str, object]:
    """Return the attributes that a class defines, and those that are registered for it."""
    for name in [name for name, member in vars(item).items() if isinstance(member, Accessor)]:
        getattr(item, name)  # imports what it stands for
    return dict(vars(item))


def _functions(item: object) -> Iterator[Callable[..., object]]:
    """Yield a function itself; of a class the public methods, and the getters of its properties."""
    if inspect.isfunction(item):
        yield item
        return
    for name, member in members_of(item).items():
        function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if inspect.isfunction(function) and not (name.startswith("_") and name != "__getitem__"):
            yield function


def _return_annotation(function: Callable[..., object]) -> object:
    """Return the type that a function returns."""
    function = inspect.unwrap(function)
    try:
        names = {**_imported_for_type_checking(function.__module__), **function.__globals__}
        return get_type_hints(function, names).get("return")
    except NameError:  # a class of an optional package
        return None


@cache
def _imported_for_type_checking(module: str) -> dict[str, object]:
    """Return what a module of this package imports for type checking only, by name."""
    blocks = [node for node in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(node, ast.If)]
    names: dict[str, object] = {}
    for node in (node for block in blocks for node in block.body):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tritonnb."):
            imported = importlib.import_module(node.module or "")
            names |= {alias.name: getattr(imported, alias.name) for alias in node.names}
    return names


def _classes(annotation: object) -> Iterator[type]:
    """Yield the public classes of this package in an annotation."""
    if inspect.isclass(annotation) and not isinstance(annotation, types.GenericAlias):
        package, _, module = annotation.__module__.partition(".")
        public = not annotation.__name__.startswith("_") and not module.startswith(_INTERNAL)
        if package == "tritonnb" and public:
            yield annotation
    for argument in get_args(annotation):
        yield from _classes(argument)
