"""The metrics endpoint: Prometheus text under Triton's names, on a dedicated port."""
