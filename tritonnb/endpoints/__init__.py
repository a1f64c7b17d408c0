"""Network endpoints: HTTP, gRPC, metrics and OpenAI's API."""
