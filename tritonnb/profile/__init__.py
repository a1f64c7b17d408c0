"""Traffic for measurements of a model: loads, and sweeps over configurations."""
