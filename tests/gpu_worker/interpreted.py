"""What tests ask of the backend on interpreted kernels; each says of it what it changes."""

import torch

from gpu_worker.device.device_backend import DeviceOptions
from tests.gpu_worker.random_models import MAX_LENGTH

INTERPRETED = DeviceOptions(
    num_slots=64,
    max_rows=2,
    max_length=MAX_LENGTH,
    device="cpu",
    dtype=torch.float32,
    poison=True,
)
