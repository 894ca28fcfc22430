"""A shuffled order that is computed one place at a time: nothing is stored, any place can be asked for.

The numbers are part of what a checkpoint promises, so they come from the integer arithmetic written here and not from a
library's generator, whose streams may change between versions.
"""

from __future__ import annotations

from collections.abc import Iterator

from mila.errors import ConfigurationError

ROUNDS = 8
MASK = (1 << 64) - 1


class Permutation:
    """All numbers from 0 to ``size - 1``, each once, in the order that (seed, epoch) gives: ``order[place]``.

    A Feistel network of eight rounds is a permutation of the smallest power of four that is not below ``size``,
    whatever its round function; numbers that fall outside ``size`` are sent through it again until one falls inside
    (cycle walking, Black and Rogaway, 2002), which leaves a permutation of ``size``. On average that takes at most
    four passes. ``len(order)`` and ``list(order)`` work as well.

    Raises:
        ConfigurationError: a size below 1, a negative epoch, a seed outside 0 .. 2**64 - 1; a place outside the order.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        if size < 1:
            raise ConfigurationError(f"size: expected 1 or more, got {size}")
        if not 0 <= seed <= MASK:
            raise ConfigurationError(f"seed: expected 0 to 2**64 - 1, got {seed}")
        if epoch < 0:
            raise ConfigurationError(f"epoch: expected 0 or more, got {epoch}")
        self._size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        key = mix(mix(seed) ^ epoch)
        self._round_keys = tuple(mix(key + number) for number in range(ROUNDS))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return map(self.__getitem__, range(self._size))

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self._size:
            raise ConfigurationError(f"place: expected 0 to {self._size - 1}, got {place}")
        number = self._network(place)
        while number >= self._size:
            number = self._network(number)
        return number

    def _network(self, number: int) -> int:
        half_mask = (1 << self._half_bits) - 1
        left, right = number >> self._half_bits, number & half_mask
        for key in self._round_keys:
            left, right = right, left ^ (mix(key ^ right) & half_mask)
        return left << self._half_bits | right


def mix(value: int) -> int:
    """Return 64 bits that each depend on all 64 of ``value``: a step of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
