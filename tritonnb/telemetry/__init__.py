"""The event stream, what is folded from it (statistics, latencies, traces), and the log."""
