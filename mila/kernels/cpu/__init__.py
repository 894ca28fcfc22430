"""The kernels in NumPy: the readable reference, and the fast path on machines without a GPU."""
