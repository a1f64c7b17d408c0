"""Clients of any server of the v2 protocol: addresses, connections, configurations and inference over HTTP or gRPC."""
