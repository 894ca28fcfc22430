"""Arrays of more than 2^32 elements: divisions of places that do not fit 32 bits, and dropout of elements so far on."""

from __future__ import annotations

import numpy as np
import pytest

from mila.devices.kernel_files import source_text
from tests.emulator.device_array import DeviceArray
from tests.emulator.module import Mode, Module
from tests.emulator.toolchain import missing_tools

pytestmark = pytest.mark.skipif(missing_tools() is not None, reason=missing_tools() or "")

#: On both sides of what 32 bits hold.
NUMBERS = (0, 1, 7, 31, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**33 + 5, 2**62 + 9)
KEYS = (0, 1, 2**64 - 12345)
_KERNELS = """
#line 1 "wide_indices.cu"
extern "C" __global__ void kept(int* results, const index_t* numbers, int count, unsigned long long key) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) results[i] = is_kept(key, numbers[i], 1717986918ull);
}
extern "C" __global__ void divisions(index_t* quotients, index_t* rests, const index_t* divisors, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) rests[i] = divide(quotients[i], divisors[i]);
}
"""


def compiled(mode: Mode) -> Module:
    return Module(source_text("shapes") + _KERNELS, (), ("-DMILA_FLOAT32",), mode)


def divided(mode: Mode) -> tuple[Module, list[tuple[int, int]]]:
    """Divide each of the numbers by each but 0, in a kernel; the module, and quotients with rests."""
    module = compiled(mode)
    pairs = np.array([(dividend, divisor) for dividend in NUMBERS for divisor in NUMBERS[1:]])
    quotients, divisors = (DeviceArray.from_host(pairs[:, column].copy()) for column in range(2))
    rests = DeviceArray((len(pairs),), np.int64)
    module.kernel("divisions").launch([1], [64], [quotients, rests, divisors, np.int32(len(pairs))])
    return module, list(zip(quotients.to_host().tolist(), rests.to_host().tolist(), strict=True))


def test_places_are_divided_in_as_many_bits_as_they_need() -> None:
    _, found = divided(Mode.FAST)
    assert found == [divmod(dividend, divisor) for dividend in NUMBERS for divisor in NUMBERS[1:]]


@pytest.mark.parametrize("key", KEYS)
def test_the_mask_of_dropout_goes_on_beyond_32_bits(key: int) -> None:
    numbers = [start + step for start in NUMBERS for step in range(20)]
    results = DeviceArray((len(numbers),), np.int32)
    arguments = [results, DeviceArray.from_host(np.array(numbers)), np.int32(len(numbers)), np.uint64(key)]
    compiled(Mode.FAST).kernel("kept").launch([1], [64], arguments)
    modulus, wanted = 1 << 64, []
    for number in numbers:  # the formula of the signature table, in Python's integers
        z = (key + (number + 1) * 0x9E3779B97F4A7C15) % modulus
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % modulus
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % modulus
        wanted.append(int((z ^ (z >> 31)) >> 32 >= 1717986918))
    assert results.to_host().tolist() == wanted
