"""The child process: the backend itself, and the server's side of its contract."""
