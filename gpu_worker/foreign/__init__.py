"""Models of families that are none of ours: transformers computes them, over our pool."""
