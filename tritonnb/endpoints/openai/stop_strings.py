"""The place where a text ends because of a stop string, found while the text arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopString:
    """A stop string, and what its searches know about its repetitions.

    The searches of all choices of a request share it. The table grows with what texts have matched so far: a client may
    send a long string that no text contains.

    Parameters
    ----------
    text : str
        At least one character.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._borders: list[int] = []

    def border(self, length: int) -> int:
        """Return the length of the longest proper prefix of ``text[:length]`` that is also its suffix."""
        text, borders = self.text, self._borders
        while len(borders) < length:
            end = len(borders)
            border = borders[-1] if borders else 0
            while border and text[border] != text[end]:
                border = borders[border - 1]
            borders.append(border + 1 if end and text[border] == text[end] else 0)
        return borders[length - 1]


class _StopSearch:
    """The search for the first occurrence of one stop string (Knuth, Morris, Pratt): each character is read once."""

    def __init__(self, stop: StopString) -> None:
        self._stop = stop
        self.matched = 0
        self.start: int | None = None

    def read(self, piece: str, offset: int) -> None:
        """Read the next piece, which begins at an offset of the text."""
        text, matched, at = self._stop.text, self.matched, 0
        while at < len(piece) and self.start is None:
            if not matched:
                at = piece.find(text[0], at)  # most texts contain few beginnings of a stop string
                if at < 0:
                    break
            while matched and piece[at] != text[matched]:
                matched = self._stop.border(matched)
            matched += piece[at] == text[matched]
            at += 1
            if matched == len(text):
                self.start = offset + at - matched
        self.matched = matched


class TextEnd:
    """The end of one text: before the first of its stop strings, wherever the borders of its pieces are.

    Text that may be the beginning of a stop string is held back. If a stop string is complete while a longer string
    that begins earlier is not, the following text decides, so that the result is the same as for the whole text.

    Parameters
    ----------
    stops : sequence of StopString
    ignored : int, optional
        The number of characters at the beginning without a search for stop strings.

    Attributes
    ----------
    ignored : int
    reached : bool
        A stop string has ended the text.

    Examples
    --------
    >>> end = TextEnd([StopString("END")])
    >>> end.add("on"), end.add("e E"), end.add("N"), end.add("D two"), end.reached
    ('on', 'e ', '', '', True)
    """

    def __init__(self, stops: Sequence[StopString], ignored: int = 0) -> None:
        self._searches = [_StopSearch(stop) for stop in stops]
        self.ignored = ignored
        self._length = 0
        self._held = ""
        self._end: int | None = None
        self.reached = False

    def add(self, piece: str) -> str:
        """Return the text that the next piece makes certain."""
        if self.reached:
            return ""
        skipped = min(max(self.ignored - self._length, 0), len(piece))
        for search in self._searches:
            search.read(piece[skipped:], self._length + skipped)
        self._held += piece
        self._length += len(piece)
        starts = [search.start for search in self._searches if search.start is not None]
        self._end = min(starts, default=None)
        # What a search has matched without a complete stop string begins here.
        possible = [self._length - search.matched for search in self._searches if search.start is None]
        if self._end is None:
            return self._release(min(possible, default=self._length))
        # A longer stop string that began earlier would end the text earlier, so the decision waits for it.
        self.reached = all(start >= self._end for start in possible)
        return self._release(self._end if self.reached else min(possible))

    def finish(self) -> str:
        """Return what was held back: no further piece will come."""
        if self.reached:
            return ""
        self.reached = self._end is not None
        return self._release(self._length if self._end is None else self._end)

    def _release(self, end: int) -> str:
        """Return the held text that ends at an offset."""
        count = end - (self._length - len(self._held))
        text, self._held = self._held[:count], self._held[count:]
        return text
