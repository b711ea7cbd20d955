"""Random input through both public doors of a running server."""
