"""Many experiments from one specification: sweeps, their index, the specs of the paper and its published numbers."""
