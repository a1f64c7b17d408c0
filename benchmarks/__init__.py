"""Benchmarks, as ratios to another server or baseline in the same run."""
