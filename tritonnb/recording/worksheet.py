"""Exercises for a class: arrivals and a configuration are given, and the batches are asked for.

The simulator knows the answer, and the scheduler's own reasons explain the first mistake. Times are drawn so
that nothing hangs on which of two things at the same moment comes first.
"""

from __future__ import annotations

import html
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.recording.batches import Batch
from tritonnb.recording.recording import Recording
from tritonnb.recording.simulate import simulate
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.run import read_config
from tritonnb.simulation.service import fixed

#: An answer: batches in order, each as ``"AB"``, ``"A1 B1"`` or a list of names; or all of them as words or lines.
Answer = str | Sequence[str | Sequence[str]]

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NULL = "-"
_ATTEMPTS = 10_000


def worksheet(batcher: str = "dynamic", *, seed: int = 0, requests: int = 6) -> Worksheet:
    """Draw an exercise from a seed: which requests share a batch.

    Parameters
    ----------
    batcher : str, optional
        ``"dynamic"``, or ``"direct"`` or ``"oldest"`` for a sequence batcher with that strategy.
    seed : int, optional
        The same seed gives the same exercise.
    requests : int, optional
        How many, 3 to 26.

    Returns
    -------
    Worksheet

    Raises
    ------
    InvalidArgumentError
        If there is no such batcher, or the number is out of range.

    Examples
    --------
    >>> sheet = worksheet(seed=1)
    >>> bool(sheet.check(sheet.solution))
    True
    """
    if batcher not in _DRAWERS:
        raise InvalidArgumentError(f"batcher cannot be '{batcher}': give one of {', '.join(_DRAWERS)}")
    if not 3 <= requests <= len(_LETTERS):
        raise InvalidArgumentError(f"requests must be 3 to {len(_LETTERS)}, got {requests}")
    chance = random.Random(f"{batcher} {seed}")
    sheet = _DRAWERS[batcher](chance, requests)
    for _ in range(_ATTEMPTS):
        if _is_clear(sheet) and _is_worth_it(sheet):
            break
        sheet = _DRAWERS[batcher](chance, requests)
    return sheet


@dataclass(frozen=True)
class Mark:
    """What became of an answer; true if it is right.

    Attributes
    ----------
    right, of : int
        Batches that are as the scheduler sent them, up to the first mistake, and all of them.
    explanation : str
    """

    right: int
    of: int
    explanation: str

    def __bool__(self) -> bool:
        return self.right == self.of

    def __repr__(self) -> str:
        return f"{self.right} of {self.of} batches right. {self.explanation}"

    def _repr_html_(self) -> str:
        sign = "✓" if self else "✗"
        return f"<p><b>{sign} {self.right} of {self.of} batches right.</b> {html.escape(self.explanation)}</p>"


@dataclass(frozen=True)
class Worksheet:
    """One exercise; `worksheet` draws one, and a teacher may write one.

    Attributes
    ----------
    config : str
        *config.pbtxt*.
    arrivals : sequence of Arrival
        In order of time. Requests are called A, B, C, …; those of sequences A1, A2, B1, …
    execution_ms : float
        How long every execution takes.
    """

    config: str
    arrivals: Sequence[Arrival]
    execution_ms: float

    def check(self, answer: Answer) -> Mark:
        """Mark an answer.

        Parameters
        ----------
        answer : str or sequence
            The batches in the order in which they are sent, each as text (``"AB"``, ``"A1 B1"``) or as a
            list of names; or one text with a word for each batch (``"A BC"``), or a line. The order inside a
            batch does not matter, nor do null requests (``"-"``).

        Returns
        -------
        Mark
            True if it is right; shown, it explains the first mistake.

        Raises
        ------
        InvalidArgumentError
            If it is neither text nor a list, or names a request that does not exist.
        """
        given = self._read(answer)
        wanted = self._members
        for number, members in enumerate(wanted):
            if number >= len(given) or given[number] != members:
                said = given[number] if number < len(given) else frozenset()
                return Mark(number, len(wanted), self._explain(number, said))
        if len(given) > len(wanted):
            return Mark(len(wanted) - 1, len(wanted), f"After batch {len(wanted)} nothing is left to be sent.")
        return Mark(len(wanted), len(wanted), "That is what the scheduler does.")

    @property
    def solution(self) -> list[list[str]]:
        """The batches, in order; ``"-"`` is a null request."""
        return [[_NULL if each is None else self.names[each - 1] for each in batch.requests] for batch in self._batches]

    @cached_property
    def recording(self) -> Recording:
        """The simulation that marks the answers; its batches say why they were sent."""
        return simulate(self.config, self.arrivals, fixed(self.execution_ms))

    @cached_property
    def names(self) -> list[str]:
        """What the requests are called, in the order of their arrivals."""
        sequences = list(dict.fromkeys(each.sequence_id for each in self.arrivals if each.sequence_id))
        if not sequences:
            return list(_LETTERS[: len(self.arrivals)])
        counts = dict.fromkeys(sequences, 0)
        names = []
        for each in self.arrivals:
            counts[each.sequence_id] += 1
            names.append(f"{_LETTERS[sequences.index(each.sequence_id)]}{counts[each.sequence_id]}")
        return names

    # --- marking ------------------------------------------------------------------------------

    @cached_property
    def _batches(self) -> list[Batch]:
        return sorted(self.recording.batches, key=lambda each: each.number)

    @property
    def _members(self) -> list[frozenset[str]]:
        return [frozenset(each) - {_NULL} for each in self.solution]

    def _read(self, answer: Answer) -> list[frozenset[str]]:
        found = []
        for batch in map(_names, _batches_in(answer)):
            names = [str(each).upper() for each in batch if each not in (_NULL, ",", ";")]
            for name in names:
                if name not in self.names:
                    raise InvalidArgumentError(f"there is no request '{name}': they are {', '.join(self.names)}")
            found.append(frozenset(names))
        return found

    def _explain(self, number: int, said: frozenset[str]) -> str:
        """The mistake in a batch: what it is, why, and what speaks against each name that is wrong."""
        batch, members = self._batches[number], self._members[number]
        wrong = [self._against(name, number) for name in sorted(said - members)]
        instead = f", not {_listed(said)}" if said else ": the answer ends before it"
        return " ".join(
            [
                f"Batch {number + 1} is {_listed(members)}, sent at {batch.sent_ns / 1e6:g} ms{instead}.",
                *filter(None, wrong),
                f"Why: {batch.why}.",
            ]
        )

    def _against(self, name: str, number: int) -> str:
        """What keeps a request out of a batch; empty where only the batch's own reason tells."""
        arrival = self.arrivals[self.names.index(name)]
        earlier = [at for at, each in enumerate(self._members[:number], 1) if name in each]
        if earlier:
            return f"{name} ran in batch {earlier[0]} already."
        if arrival.time_us * 1000 > self._batches[number].sent_ns:
            return f"{name} arrives at {arrival.time_us / 1000:g} ms only."
        ran = set().union(*self._members[:number])
        before = f"{name[0]}{int(name[1:] or 1) - 1}"
        if before in self.names and before not in ran:
            return f"{name} comes after {before} of its sequence, which has not run before."
        if arrival.sequence_start and self._slots_taken(ran, self._members[number]) >= self._slots():
            return f"{name}'s sequence waits in the backlog: others have all the slots."
        return ""

    def _slots_taken(self, ran: set[str], members: frozenset[str]) -> int:
        """Sequences that have run, or do in this batch, and had not come to their end before it."""
        alive = {name[0] for name in ran | members}
        ended = {name[0] for name, each in zip(self.names, self.arrivals, strict=True) if each.sequence_end}
        return len(alive - {letter for letter in ended if self._last_of(letter) in ran})

    def _last_of(self, letter: str) -> str:
        return max((name for name in self.names if name[0] == letter), key=lambda name: int(name[1:]))

    def _slots(self) -> int:
        config = read_config(self.config)
        return int(config.sequence_batching.oldest.max_candidate_sequences or config.max_batch_size)

    # --- looking at it ------------------------------------------------------------------------

    @property
    def question(self) -> str:
        """What is asked, in words."""
        return (
            f"One instance, idle at first. Every execution takes {self.execution_ms:g} ms, whatever its size. "
            "Which requests does each batch hold, in the order in which the batches are sent?"
        )

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        """The arrivals as a table: head and rows."""
        stateful = any(each.sequence_id for each in self.arrivals)
        rows = []
        for name, each in zip(self.names, self.arrivals, strict=True):
            row = [name, f"{each.time_us / 1000:g}"]
            flags = [flag for flag, on in (("START", each.sequence_start), ("END", each.sequence_end)) if on]
            rows.append([*row, " ".join(flags)] if stateful else [*row, str(each.rows)])
        return ["request", "arrives (ms)", "flags" if stateful else "rows"], rows

    def __repr__(self) -> str:
        head, rows = self._rows()
        table = [f"  {a:<9}{b:>13}  {c}" for a, b, c in [head, *rows]]
        return "\n".join([self.question, "", self.config, "", *table])

    def _repr_html_(self) -> str:
        head, rows = self._rows()
        cells = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        return (
            f"<p>{html.escape(self.question)}</p><pre>{html.escape(self.config)}</pre>"
            f"<table><caption>Arrivals</caption><thead><tr>{''.join(f'<th>{each}</th>' for each in head)}</tr></thead>"
            f"<tbody>{cells}</tbody></table>"
        )


def _batches_in(answer: Answer) -> Sequence[str | Sequence[str]]:
    """What an answer says of each batch: a list's elements, a text's lines, or the words of its only line."""
    if isinstance(answer, str):
        lines = [each for each in answer.splitlines() if each.strip()]
        return lines if len(lines) > 1 else re.split(r"[\s,;]+", answer.strip())
    if not isinstance(answer, list | tuple):
        raise _no_answer(answer)
    return answer


def _names(batch: str | Sequence[str]) -> Sequence[str]:
    if isinstance(batch, str):
        return re.findall(r"[A-Za-z]\d*|\S", batch)
    if not isinstance(batch, list | tuple):
        raise _no_answer(batch)
    return batch


def _no_answer(given: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"an answer is text such as 'A BC' or a list such as ['A', 'BC'] or [['A'], ['B', 'C']], got {given!r}"
    )


def _listed(names: frozenset[str]) -> str:
    ordered = sorted(names)
    return ordered[0] if len(ordered) == 1 else f"{', '.join(ordered[:-1])} and {ordered[-1]}"


# --- drawing one ----------------------------------------------------------------------------------


def _dynamic(chance: random.Random, requests: int) -> Worksheet:
    limit = chance.choice([4, 8])
    delay_ms = chance.choice([0, 5, 10, 20])
    lines = [f"  max_queue_delay_microseconds: {delay_ms * 1000}"] if delay_ms else []
    if chance.random() < 0.4:
        lines.append(f"  preferred_batch_size: [ {limit // 2} ]")
    body = "\n".join(["dynamic_batching {", *lines, "}"])
    times = _times(chance, requests, 12)
    arrivals = [Arrival(time_us, chance.randint(1, limit // 2)) for time_us in times]
    return Worksheet(f"max_batch_size: {limit}\n{body}", arrivals, chance.choice([10, 15, 20]))


def _direct(chance: random.Random, requests: int) -> Worksheet:
    slots = chance.choice([2, 3])
    lines = ["  direct {"]
    if chance.random() < 0.5:
        lines.append(f"    max_queue_delay_microseconds: {chance.choice([5, 10]) * 1000}")
        lines.append(f"    minimum_slot_utilization: {chance.choice([0.5, 1.0])}")
    return _stateful(chance, requests, slots, [*lines, "  }"])


def _oldest(chance: random.Random, requests: int) -> Worksheet:
    lines = ["  oldest {", f"    max_candidate_sequences: {chance.choice([2, 3])}"]
    if chance.random() < 0.5:
        lines.append(f"    max_queue_delay_microseconds: {chance.choice([5, 10]) * 1000}")
    return _stateful(chance, requests, chance.choice([2, 4]), [*lines, "  }"])


_DRAWERS = {"dynamic": _dynamic, "direct": _direct, "oldest": _oldest}


def _stateful(chance: random.Random, requests: int, limit: int, strategy: list[str]) -> Worksheet:
    body = "\n".join(["sequence_batching {", *strategy, "}"])
    count = max(2, requests // 2)
    owners = [chance.randrange(count) for _ in range(requests)]
    arrivals = [
        Arrival(
            time_us,
            sequence_id=owner + 1,
            sequence_start=owner not in owners[:at],
            sequence_end=owner not in owners[at + 1 :],
        )
        for at, (owner, time_us) in enumerate(zip(owners, _times(chance, requests, 8), strict=True))
    ]
    return Worksheet(f"max_batch_size: {limit}\n{body}", arrivals, chance.choice([7, 10, 13]))


def _times(chance: random.Random, requests: int, gap_ms: int) -> list[float]:
    """Whole milliseconds, the first at 0."""
    times = [0.0]
    while len(times) < requests:
        times.append(times[-1] + 1000 * chance.randint(1, gap_ms))
    return times


def _is_clear(sheet: Worksheet) -> bool:
    """Whether no two things that matter happen at the same moment."""
    ends = [each.exec_end_ns for each in sheet.recording.batches]
    arrived = [round(each.time_us * 1000) for each in sheet.arrivals]
    delays = {int(each) * 1000 for each in re.findall(r"delay_microseconds: (\d+)", sheet.config)}
    due = {moment + delay for moment in arrived for delay in delays}
    moments = sorted([*ends, *arrived, *due])
    return all(a != b for a, b in pairwise(moments)) and not sheet.recording.refused


def _is_worth_it(sheet: Worksheet) -> bool:
    """Whether something is shared, something is not, and not everything has one reason."""
    sizes = {sum(each is not None for each in batch.requests) for batch in sheet.recording.batches}
    rules = {batch.reason.rule for batch in sheet.recording.batches}
    has_one_rule_only = read_config(sheet.config).HasField("sequence_batching")
    return len(sizes) > 1 and len(sheet.recording.batches) >= 3 and (has_one_rule_only or len(rules) > 1)
