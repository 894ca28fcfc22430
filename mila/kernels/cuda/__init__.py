"""CUDA kernels: CUDA C++ in ``*.cu``, and beside each file what launches it."""
