"""The error of a call that the driver refuses."""


class CUDADriverError(RuntimeError):
    """A launch or a look-up failed."""
