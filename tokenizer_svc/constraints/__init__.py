"""Constrained output at the door: what a client wrote becomes a grammar that the worker follows."""
