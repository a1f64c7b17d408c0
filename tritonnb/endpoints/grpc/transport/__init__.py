"""HTTP/2 over TCP for gRPC, and grpcio as its stand-in."""
