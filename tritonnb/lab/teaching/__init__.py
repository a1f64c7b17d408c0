"""Worksheets: exercises on batching that check their answers."""
