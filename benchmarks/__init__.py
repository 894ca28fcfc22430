"""Benchmarks: Mila beside PyTorch in one run. Each module runs by itself: ``python -m benchmarks.<module> --help``."""
