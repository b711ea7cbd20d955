"""Constrained output: what clients write, what is made of it, and what may then be said."""
