"""Real time: engine, model lifecycle, instance threads, sequences."""
