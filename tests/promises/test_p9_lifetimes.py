"""P9: declared lifetimes are true: no bit depends on what is left in bytes whose life has ended.

In the poisoned layout no two buffers share a byte, and bytes become 0xFF, which is NaN in every float, when their
declared life ends. The real layout must give the same bits.
"""

from __future__ import annotations

import pytest

from mila.core import Layout, RuntimeMode
from mila.devices import ExecutionContext
from tests.promises.case import Case
from tests.promises.cases import BUILDS, SOME_HALF_BUILDS
from tests.promises.running import differences, everything


@pytest.mark.parametrize(("case", "dtype", "mode"), [*BUILDS, *SOME_HALF_BUILDS], ids=str)
def test_the_poisoned_layout_gives_the_same_bits(
    case: Case, dtype: str, mode: RuntimeMode, device: ExecutionContext
) -> None:
    shared, poisoned = (
        everything(case, case.build(device, mode, dtype, layout=layout), mode)
        for layout in (Layout.SHARED, Layout.POISONED)
    )
    assert len(shared) > 0
    assert differences(shared, poisoned) == []
