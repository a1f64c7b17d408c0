"""Clients of the v2 protocol: addresses, connections, configurations and inference, over HTTP or gRPC."""
