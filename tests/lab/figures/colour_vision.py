"""Contrast and differences of colours as people with and without a colour vision deficiency see them.

Contrast is that of WCAG 2.2; the matrices are those of Machado, Oliveira and Fernandes (2009) for severity 1.0, applied
to linear RGB; differences are CIEDE2000 in CIELAB under D65.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

VISION: dict[str, Vector] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> Vector:
    """The linear RGB values of a colour such as ``#0072B2``."""
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, from 1 to 21."""
    light, dark = sorted((float(_TO_XYZ[1] @ linear(colour)) for colour in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(colour: str, vision: str = "normal") -> Vector:
    """A colour in CIELAB, as seen with this vision."""
    xyz = _TO_XYZ @ np.clip(VISION[vision] @ linear(colour), 0, 1) / _WHITE
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one: str, other: str, vision: str = "normal") -> float:
    """The difference of two colours (CIEDE2000), as seen with this vision; 1 is just noticeable."""
    return ciede2000(lab(one, vision), lab(other, vision))


def ciede2000(one: Vector, other: Vector) -> float:
    """The difference of two colours in CIELAB (Sharma, Wu and Dalal, 2005)."""
    chroma = (math.hypot(one[1], one[2]) + math.hypot(other[1], other[2])) / 2
    g = 0.5 * (1 - math.sqrt(chroma**7 / (chroma**7 + 25**7)))
    a1, a2 = one[1] * (1 + g), other[1] * (1 + g)
    c1, c2 = math.hypot(a1, one[2]), math.hypot(a2, other[2])
    h1, h2 = (math.degrees(math.atan2(b, a)) % 360 for a, b in ((a1, one[2]), (a2, other[2])))
    dl, dc, dh = other[0] - one[0], c2 - c1, h2 - h1
    if not c1 * c2:
        dh = 0.0
    elif abs(dh) > 180:
        dh -= math.copysign(360, dh)
    dh = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(dh) / 2)
    lightness, mean = (one[0] + other[0]) / 2, (c1 + c2) / 2
    hue = h1 + h2 if not c1 * c2 else (h1 + h2) / 2 if abs(h1 - h2) <= 180 else ((h1 + h2 + 360) / 2) % 360
    t = (
        1
        - 0.17 * math.cos(math.radians(hue - 30))
        + 0.24 * math.cos(math.radians(2 * hue))
        + 0.32 * math.cos(math.radians(3 * hue + 6))
        - 0.20 * math.cos(math.radians(4 * hue - 63))
    )
    sl = 1 + 0.015 * (lightness - 50) ** 2 / math.sqrt(20 + (lightness - 50) ** 2)
    sc, sh = 1 + 0.045 * mean, 1 + 0.015 * mean * t
    rc = 2 * math.sqrt(mean**7 / (mean**7 + 25**7))
    rt = -math.sin(math.radians(60 * math.exp(-(((hue - 275) / 25) ** 2)))) * rc
    l_part, c_part, h_part = dl / sl, dc / sc, dh / sh
    return math.sqrt(l_part**2 + c_part**2 + h_part**2 + rt * c_part * h_part)
