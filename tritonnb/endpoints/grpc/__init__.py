"""The gRPC endpoint: NVIDIA's GRPCInferenceService on the server's own loop."""
