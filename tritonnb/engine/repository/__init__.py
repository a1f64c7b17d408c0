"""The model repository: finding, loading, changing and unloading models."""
