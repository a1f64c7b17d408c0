"""The HTTP/REST endpoint of the v2 protocol."""
