"""Exercises for a class: arrivals and a configuration are given, and the batches are asked for.

The simulator knows the answer, and the scheduler's own reasons explain the first mistake.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.read import config_text, read_config
from tritonnb.model_config.validate import check_scheduling
from tritonnb.recording.batches import Batch
from tritonnb.recording.recording import Recording
from tritonnb.recording.simulate import simulate
from tritonnb.scheduling.reasons import pluralize
from tritonnb.simulation.arrivals import Arrival, as_arrivals, require_positive
from tritonnb.simulation.run import instance_count
from tritonnb.simulation.service import fixed

#: An answer: batches in order, each as ``"AB"``, ``"A1 B1"`` or a list of names; or all of them as words or lines.
Answer = str | Sequence[str | Sequence[str]]

#: What requests are called, or sequences.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NULL = "-"


@dataclass(frozen=True)
class Grade:
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
    """One exercise; `tritonnb.worksheet` draws one, and a teacher may write one.

    Attributes
    ----------
    config : str
        *config.pbtxt*; given in any form that `simulate` takes, and checked at once.
    arrivals : sequence of Arrival
        In order of time; may be given as pairs of time (µs) and rows, and in any order. Requests are called A, B,
        C, …; those of sequences A1, A2, B1, …
    execution_ms : float
        How long every execution takes.

    Raises
    ------
    InvalidArgumentError
        If configuration, arrivals or execution time cannot be, or no batch would be sent.

    Examples
    --------
    >>> sheet = Worksheet("max_batch_size: 8 dynamic_batching { }", [Arrival(ms=0), Arrival(ms=2, rows=3)], 10)
    >>> sheet.hint().splitlines()[0]
    'Batch 1 is sent at 0 ms, when A arrives. By then A has arrived and has not run.'
    """

    config: str
    arrivals: Sequence[Arrival]
    execution_ms: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", config_text(self.config, check=check_scheduling))
        arrivals = tuple(sorted(as_arrivals(self.arrivals), key=lambda each: each.time_us))
        object.__setattr__(self, "arrivals", arrivals)
        require_positive(execution_ms=self.execution_ms)
        if not 0 < len(arrivals) <= len(LETTERS):
            raise InvalidArgumentError(f"a worksheet has 1 to {len(LETTERS)} requests, got {len(arrivals)}")
        if len({bool(each.sequence_id) for each in arrivals}) > 1:
            raise InvalidArgumentError("in a worksheet all arrivals have a sequence_id, or none has one")
        if not self.recording.batches:
            raise InvalidArgumentError(f"no batch of this worksheet would be sent: {self.recording.verdict()}")

    def check(self, answer: Answer) -> Grade:
        """Mark an answer.

        Parameters
        ----------
        answer : str or sequence
            The batches in the order in which they are sent, each as text (``"AB"``, ``"A1 B1"``) or as a
            list of names; or one text with a word for each batch (``"A BC"``), or a line. The order inside a
            batch does not matter, nor do null requests (``"-"``).

        Returns
        -------
        Grade
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
                return Grade(number, len(wanted), self._explain(number, said))
        if len(given) > len(wanted):
            return Grade(len(wanted) - 1, len(wanted), f"After batch {len(wanted)} nothing is left to be sent.")
        return Grade(len(wanted), len(wanted), "That is what the scheduler does.")

    def hint(self, answer: Answer = ()) -> str:
        """What helps with the first batch that is missing or wrong, without its solution.

        Parameters
        ----------
        answer : str or sequence, optional
            What there is so far, as `check` reads it.

        Returns
        -------
        str
            When that batch is sent, what happens then, and which requests may be in it.

        Raises
        ------
        InvalidArgumentError
            As `check` does.
        """
        mark, asked = self.check(answer), len(self._read(answer))
        if mark:
            return "This answer is right."
        if mark.right == mark.of - 1 and asked > mark.of:
            return f"One batch too many: every request has run after {pluralize(mark.of, 'batch', 'batches')}."
        sent_ns = self._batches[mark.right].sent_ns
        ran = set().union(*self._members[: mark.right])
        waiting = [name for name, at_ns in zip(self.names, self.arrived_ns, strict=True)
                   if at_ns <= sent_ns and name not in ran]  # fmt: skip
        have = "has arrived and has" if len(waiting) == 1 else "have arrived and have"
        return (
            f"Batch {mark.right + 1} is sent at {sent_ns / 1e6:g} ms, when {self._happens_at(sent_ns)}. "
            f"By then {_listed(frozenset(waiting))} {have} not run.\n{self._question_of_batcher()}"
        )

    def _happens_at(self, time_ns: int) -> str:
        """What the scheduler reacts to at a moment."""
        arrived = [name for name, at_ns in zip(self.names, self.arrived_ns, strict=True) if at_ns == time_ns]
        ended = [f"the execution of batch {number} ends" for number, batch in enumerate(self._batches, 1)
                 if batch.exec_end_ns == time_ns]  # fmt: skip
        comes = [f"{_listed(frozenset(arrived))} {'arrives' if len(arrived) == 1 else 'arrive'}"] if arrived else []
        return " and ".join([*comes, *ended]) or "a delay is over"

    def _question_of_batcher(self) -> str:
        if read_config(self.config).HasField("sequence_batching"):
            return "Which sequences have a slot, and which request of each is next?"
        return "How many rows may a batch have, and does it pay to wait for more?"

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
            return list(LETTERS[: len(self.arrivals)])
        counts = dict.fromkeys(sequences, 0)
        names = []
        for each in self.arrivals:
            counts[each.sequence_id] += 1
            names.append(f"{LETTERS[sequences.index(each.sequence_id)]}{counts[each.sequence_id]}")
        return names

    # --- marking ------------------------------------------------------------------------------

    @cached_property
    def _batches(self) -> list[Batch]:
        return sorted(self.recording.batches, key=lambda each: each.number)

    @cached_property
    def arrived_ns(self) -> list[int]:
        """When each request arrives."""
        return [round(each.time_us * 1000) for each in self.arrivals]

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
        instances = instance_count(read_config(self.config))
        return (
            f"{pluralize(instances, 'instance')}, idle from the start. "
            f"Every execution takes {self.execution_ms:g} ms, whatever its size. "
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
