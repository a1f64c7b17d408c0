"""The colours of all figures and widgets: distinguishable with colour vision deficiency, and always used with labels.

They are those of Okabe and Ito except for the yellow, whose contrast on white and on a dark background is too low.
"""

from __future__ import annotations

BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#CCBB44",
)  # fmt: skip
INK, GREY, LIGHT = "#222222", "#767676", "#D9D9D9"

NAMES = {
    BLUE: "blue", ORANGE: "orange", GREEN: "green", PINK: "pink", SKY: "sky", VERMILION: "vermilion", YELLOW: "yellow",
}  # fmt: skip
_CYCLE = tuple(NAMES)


def colour(number: int) -> str:
    """The colour of the n-th item of a series; the seven colours repeat."""
    return _CYCLE[number % len(_CYCLE)]


def tint(hex_colour: str, share: float = 0.5) -> str:
    """A colour mixed with white, light enough for dark text on it.

    Examples
    --------
    >>> tint("#000000", 0.5)
    '#808080'
    """
    channels = (int(hex_colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - channel) * share):02x}" for channel in channels)
