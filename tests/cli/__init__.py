"""The command line, held to what it prints, sends and returns."""
