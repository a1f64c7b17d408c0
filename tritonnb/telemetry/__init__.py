"""Folding the event stream into statistics and recordings."""
