"""The same model repository on several machines: Ray Serve, Kubernetes, KServe."""
