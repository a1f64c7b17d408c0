"""Widgets and magics."""
