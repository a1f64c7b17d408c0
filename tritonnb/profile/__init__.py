"""Traffic on a model and what it measures: loads, and sweeps over configurations."""
