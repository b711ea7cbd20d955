"""Four fixed workloads, the client that plays them, and the arithmetic of what it saw.

Floor 3 beside the command line.  It speaks the public gRPC alone; the command is cli/bench.py.
"""
