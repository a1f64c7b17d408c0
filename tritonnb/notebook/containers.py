"""The widgets that views consist of besides their pictures: groups of other widgets, and HTML.

They are anywidgets, like the pictures: marimo shows no others, such as the boxes, tabs and HTML of ipywidgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anywidget
import ipywidgets
import traitlets

from tritonnb.notebook.widget_files import javascript, stylesheet


def _references(widgets: Sequence[anywidget.AnyWidget], _group: object) -> list[str]:
    """Return what `host.getWidget` of anywidget takes in the browser."""
    return [f"anywidget:{widget.model_id}" for widget in widgets]


class Markup(anywidget.AnyWidget):
    """A widget that shows HTML without scripts.

    Attributes
    ----------
    value : str
    css_class : str
        Of its element, if it has one.

    Examples
    --------
    >>> Markup("<b>read</b>").value
    '<b>read</b>'
    """

    _esm = javascript("markup")
    _css = stylesheet("markup")
    value = traitlets.Unicode().tag(sync=True)
    css_class = traitlets.Unicode().tag(sync=True)

    def __init__(self, value: str = "", **traits: Any) -> None:
        super().__init__(value=value, **traits)


class Group(anywidget.AnyWidget):
    """Widgets one below the other; each on its own tab if they have titles.

    Parameters
    ----------
    children : sequence of anywidget.AnyWidget

    Attributes
    ----------
    children : tuple of anywidget.AnyWidget
    titles : tuple of str
        Of the tabs; empty without tabs.
    css_class : str
        Of its element, if it has one.
    shared : str
        The name of a trait that has the same value in all children that have it, kept by the browser.

    Examples
    --------
    >>> tabs = Group([Markup("1"), Markup("2")], titles=("first", "second"))
    >>> [child.value for child in tabs.children], tabs.titles
    (['1', '2'], ('first', 'second'))
    """

    _esm = javascript("group")
    _css = stylesheet("group")
    children = ipywidgets.TypedTuple(trait=traitlets.Instance(anywidget.AnyWidget)).tag(sync=True, to_json=_references)
    titles = ipywidgets.TypedTuple(trait=traitlets.Unicode()).tag(sync=True)
    css_class = traitlets.Unicode().tag(sync=True)
    shared = traitlets.Unicode().tag(sync=True)

    def __init__(self, children: Sequence[anywidget.AnyWidget] = (), **traits: Any) -> None:
        super().__init__(children=tuple(children), **traits)
