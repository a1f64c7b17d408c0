"""Worksheets: exercises on batching that mark their answers."""
