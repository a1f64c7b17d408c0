"""Simulation: the schedulers in virtual time, with arrivals and service-time models."""

from tritonnb.simulation.arrivals import Arrival, ClosedLoop, bursts, constant, poisson, sequences
from tritonnb.simulation.service import fixed, jittered, linear, measured, service_time, table

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
    "service_time",
    "table",
]
