"""Schemas and stubs, the batch plan, its codec, and the errors every service shares.

Floor 1 of the house: imports nothing of radixd, and everything may import it.
"""
