"""Recordings of any Triton, from its traces: reading, replay, recording with a connection."""
