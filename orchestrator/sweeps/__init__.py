"""Run, confirm and rerun sweeps and tables of methods."""
