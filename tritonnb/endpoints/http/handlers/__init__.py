"""The handlers of the HTTP API, beyond inference."""
