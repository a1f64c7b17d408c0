"""Answers from configurations, figures of load generators, statistics and metrics, without a recording."""
