"""The same workload for other engines' structures, where they are installed.

Only names of their public packages stand here; nothing of theirs was copied.
"""
