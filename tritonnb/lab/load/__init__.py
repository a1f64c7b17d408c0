"""Load on a server, and sweeps over configurations."""
