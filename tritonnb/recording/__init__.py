"""Recordings, as data: events, batches with their reasons, sequences, generations, files."""
