"""In-process inference: arrays in, arrays out."""
