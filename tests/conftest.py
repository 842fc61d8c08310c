"""What every test shares: one thread, so that tiny networks do not wait for each other's cores."""

import torch

torch.set_num_threads(1)
