"""The colours: contrast with their backgrounds, and whether those that appear together are distinguishable."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from tests.lab.figures.colour_vision import VISION, ciede2000, contrast, difference
from tritonnb.lab.figures import palette

#: Backgrounds of pages and of lanes, in JupyterLab and in figures.
BACKGROUNDS = {
    "light": ("#FFFFFF", palette.PANEL),
    "dark": ("#111111", "#212121", palette.DARK[palette.PANEL]),
}
#: The least contrast of graphics by WCAG 2.2, criterion 1.4.11.
CONTRAST = 3.0
PHASES = ("queue", "input", "compute", "output")


def colours(theme: str) -> dict[str, str]:
    """Every colour with a meaning, by name."""
    themed = palette.themes()[theme]
    lists = {name: themed[name] for name in ("priorities", "series")}
    numbered = {f"{name} {at}": value for name, values in lists.items() for at, value in enumerate(values, 1)}
    return {name: value for name, value in themed.items() if isinstance(value, str)} | numbered


def least_difference(one: str, other: str) -> float:
    return min(difference(one, other, vision) for vision in VISION)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (50, 0, -2.5), 4.3065),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_colour_difference_equals_the_published_test_data(
    one: tuple[float, ...], other: tuple[float, ...], expected: float
) -> None:
    assert ciede2000(np.array(one), np.array(other)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_every_colour_has_enough_contrast_with_its_backgrounds(theme: str) -> None:
    low = {
        (name, background): round(contrast(colour, background), 2)
        for name, colour in colours(theme).items()
        for background in BACKGROUNDS[theme]
        if contrast(colour, background) < CONTRAST
    }
    assert low == {}


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_colours_are_distinguishable_with_every_colour_vision(theme: str) -> None:
    themed = colours(theme)
    pairs = combinations([name for name in themed if " " not in name], 2)
    differences = {pair: least_difference(themed[pair[0]], themed[pair[1]]) for pair in pairs}
    assert min(differences.values()) > 9, min(differences, key=lambda pair: differences[pair])


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_priority_colours_are_distinguishable_and_ordered_by_contrast(theme: str) -> None:
    levels = palette.themes()[theme]["priorities"]
    assert min(least_difference(*pair) for pair in combinations(levels, 2)) > 7
    contrasts = [contrast(colour, BACKGROUNDS[theme][0]) for colour in levels]
    assert contrasts == sorted(contrasts, reverse=True)


@pytest.mark.parametrize("theme", BACKGROUNDS)
@pytest.mark.parametrize(("levels", "expected"), [(1, 1), (2, 3), (3, 1.9), (5, 1.2)])
def test_few_priorities_differ_more_in_lightness(theme: str, levels: int, expected: float) -> None:
    shown = [palette.priority(level, levels) for level in range(1, levels + 1)]
    if theme == "dark":
        shown = [palette.DARK[colour] for colour in shown]
    assert min([contrast(*pair) for pair in pairwise(shown)], default=1) >= expected


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_priority_colours_differ_from_other_colours_of_the_picture(theme: str) -> None:
    themed, levels = colours(theme), palette.themes()[theme]["priorities"]
    differences = {
        (name, level): [difference(themed[name], colour, vision) for vision in VISION]
        for name in palette.MEANINGS
        for level, colour in enumerate(levels, 1)
    }
    similar = {pair: min(seen) for pair, seen in differences.items() if min(seen) < (11 if pair[0] in PHASES else 6)}
    assert similar == {}
    assert min(seen[0] for seen in differences.values()) > 14  # without a deficiency


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_adjacent_colours_of_a_series_are_distinguishable(theme: str) -> None:
    shown = palette.themes()[theme]["series"]
    near = [(shown[at], shown[(at + step) % len(shown)]) for at in range(len(shown)) for step in (1, 2)]
    assert min(least_difference(*pair) for pair in near) > 20
    assert min(least_difference(*pair) for pair in combinations(shown, 2)) > 7


def test_no_two_meanings_share_a_colour() -> None:
    for theme in BACKGROUNDS:
        shown = list(colours(theme).values())
        assert len(set(shown)) == len(shown)
    assert set(palette.DARK) >= set(colours("light").values())


def test_style_sheet_has_the_colours_of_both_themes() -> None:
    light, dark, *papers = palette.style_sheet(".view", palette.DARK_PAGES).splitlines()
    assert light.startswith(f".view {{ --tnb-queue: {palette.QUEUE};")
    assert f"--tnb-compute: {palette.DARK[palette.COMPUTE]};" in dark
    assert dark.startswith("[data-tnb-theme='dark'] .view, .view[data-tnb-theme='dark'], ")
    assert all(f"{page} .view" in dark for page in palette.DARK_PAGES)
    assert [paper.count("--jp-ui-font-color1:") for paper in papers] == [1, 1]


def test_colours_repeat_after_the_last_one() -> None:
    assert palette.series(7) == palette.series(0)
    assert [palette.priority(level, 9) for level in (0, 1, 9)] == [palette.PRIORITIES[at] for at in (0, 0, -1)]
