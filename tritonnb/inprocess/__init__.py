"""In-process inference with NumPy arrays."""
