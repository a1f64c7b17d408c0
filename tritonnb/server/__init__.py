"""The server that Python code holds: `serve`, `Server`, and the handles of models and configurations."""
