"""Slots to tensors: the KV pool, the model and the sampler.

Knows nothing of queues, deadlines, requests or text; the scheduler decides, this computes.
"""
