"""Tests of the CUDA backend on a machine with a GPU, and how fast it is there; see ``specs/gpu_check.md``."""
