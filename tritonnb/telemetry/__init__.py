"""The event stream; statistics, latencies and traces that are computed from it; the log."""
