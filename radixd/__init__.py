"""Command line, launcher, benchmark, and the chassis that the services share."""
