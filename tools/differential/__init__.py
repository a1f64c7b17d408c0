"""Random traffic on a live server, compared with the simulator: see ``python -m tools.differential --help``."""
