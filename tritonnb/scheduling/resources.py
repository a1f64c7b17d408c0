"""Resources that the rate limiter grants to batches."""

from __future__ import annotations

from dataclasses import dataclass

#: Name and device of a resource; None for the whole server.
Pool = tuple[str, int | None]


# A separate module: mypyc drops the docstrings of the classes that it compiles, and this one is public.
@dataclass(frozen=True, slots=True)
class Resource:
    """An amount of a resource, as ``--rate-limit-resource`` sets it.

    Attributes
    ----------
    name : str
    count : int
        How much of it there is, or how much an instance needs.
    device : int or None
        Number of the GPU that has it; None for the whole server.

    Examples
    --------
    >>> Resource("memory", 4, device=0)
    Resource(name='memory', count=4, device=0)
    """

    name: str
    count: int
    device: int | None = None

    @property
    def pool(self) -> Pool:
        """Name and device."""
        return self.name, self.device
