"""Four fixed workloads, the client that plays them, and the arithmetic of what it saw.

Floor 3 beside the command line.  It speaks the public gRPC, and to peers their OpenAI API; the
command is cli/bench.py.
"""
