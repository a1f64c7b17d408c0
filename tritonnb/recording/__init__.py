"""Recordings of live and simulated servers: batches with their reasons, files, comparisons."""
