"""Static matplotlib figures of recordings, statistics, loads and sweeps."""
