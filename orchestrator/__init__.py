"""Training, search, tracking and tables of methods. The public names are those of `ctvr`."""
