"""Doors into the engine."""
