"""Recordings of live and of simulated servers: batches with their reasons, files, comparisons."""
