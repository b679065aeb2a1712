"""What runs, searches, records and tabulates methods; the public names are those of `ctvr`."""
