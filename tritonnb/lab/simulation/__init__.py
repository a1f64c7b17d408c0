"""Simulation: the schedulers in virtual time, with arrivals and service-time models."""
