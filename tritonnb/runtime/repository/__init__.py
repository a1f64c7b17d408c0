"""The model repository: which models there are, and loading, changing and unloading them."""
