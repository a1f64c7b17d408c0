"""Backends, which load and run models, and their contract."""
