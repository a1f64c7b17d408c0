"""Any Triton: its traces as recordings, and a connection to its endpoints."""
