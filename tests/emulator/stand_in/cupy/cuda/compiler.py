"""The error of a source that does not compile."""


class CompileException(Exception):  # noqa: N818  CuPy's name
    """A compiler refused the source."""
