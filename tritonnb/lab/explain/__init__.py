"""Answers from what people have without a recording: configurations, figures of load generators, statistics, metrics."""
