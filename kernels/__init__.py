"""GPU kernels, one file each, with a plain-torch reference beside every one.

Deliberately without a version attribute: `transformers` probes a distribution of this name.
Imported only by `gpu_worker.device`.
"""
