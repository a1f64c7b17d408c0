"""Running models: the backend contract and the backends."""
