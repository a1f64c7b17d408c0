"""The same scheduler in virtual time: `simulate`, its arrivals and its service-time models."""

from tritonnb.simulate.arrivals import Arrival, ClosedLoop, bursts, constant, poisson, sequences
from tritonnb.simulate.run import simulate
from tritonnb.simulate.service import fixed, jittered, linear, measured, table

__all__ = [
    "Arrival",
    "ClosedLoop",
    "bursts",
    "constant",
    "fixed",
    "jittered",
    "linear",
    "measured",
    "poisson",
    "sequences",
    "simulate",
    "table",
]
