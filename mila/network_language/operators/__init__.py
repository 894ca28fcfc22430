"""The operators of Mila, one file per family."""

from mila.network_language.operators import (
    activation,
    arithmetic,
    core,
    normalization,
    regularization,
    sequence,
    shape,
    transformer,
)
from mila.network_language.registry import Registry

BUILT_IN = Registry(
    (
        *core.OPERATORS,
        *sequence.OPERATORS,
        *transformer.OPERATORS,
        *activation.OPERATORS,
        *normalization.OPERATORS,
        *regularization.OPERATORS,
        *arithmetic.OPERATORS,
        *shape.OPERATORS,
    )
)
