"""Kernels: raw tensors in, raw tensors out; a torch reference beside each Triton kernel."""
