"""The forward pass on Triton kernels: on a GPU, or interpreted by numpy where there is none."""
