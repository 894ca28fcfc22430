"""The largest number that fits, with few questions: memory grows with batch and context, nearly in straight lines."""

from __future__ import annotations

from collections.abc import Callable

#: What a number costs; ``None`` where it cannot be had.
Cost = Callable[[int], int | None]


def largest_within(cost: Cost, budget: int, asked: int, most: int) -> int | None:
    """The largest number from 1 to ``most`` whose cost is within ``budget``, and the next one's is not.

    Guesses along the straight line through two known costs, and halves the interval where that helps little.

    Args:
        cost: grows with the number.
        budget: what may be spent.
        asked: where to begin; its cost is most likely known.
        most: the largest number allowed.

    Returns:
        ``None`` where not even 1 fits.
    """
    search = _Search(cost, budget)
    if search.fits(asked):
        search.low = asked
        high = _first_too_large(search, asked, most)
        if high is None:
            return most
        search.high = high
    else:
        if not search.fits(1):
            return None
        search.low, search.high = 1, asked
    return search.boundary()


class _Search:
    """An interval whose low end fits and whose high end does not."""

    def __init__(self, cost: Cost, budget: int) -> None:
        self._cost = cost
        self._budget = budget
        self._known: dict[int, int | None] = {}
        self.low = self.high = 0

    def cost(self, value: int) -> int | None:
        if value not in self._known:
            self._known[value] = self._cost(value)
        return self._known[value]

    def fits(self, value: int) -> bool:
        cost = self.cost(value)
        return cost is not None and cost <= self._budget

    def boundary(self) -> int:
        """Narrow the interval to two neighbours, and return the lower one."""
        helped_little = 0
        while self.high - self.low > 1:
            width = self.high - self.low
            guess = self.low + width // 2 if helped_little >= 2 else self.guess()
            if self.fits(guess):
                self.low = guess
            else:
                self.high = guess
            helped_little = helped_little + 1 if self.high - self.low > width // 2 else 0
        return self.low

    def guess(self) -> int:
        """The last number inside that fits if costs grow evenly between the ends."""
        low_cost, high_cost = self.cost(self.low), self.cost(self.high)
        width = self.high - self.low
        if low_cost is None or high_cost is None or high_cost <= low_cost:
            return self.low + width // 2
        steps = (self._budget - low_cost) * width // (high_cost - low_cost)
        return self.low + min(max(steps, 1), width - 1)

    def beyond(self, previous: int) -> int:
        """The first number above ``low`` that does not fit if costs grow as from ``previous`` to ``low``."""
        before, now = self.cost(previous), self.cost(self.low)
        if before is None or now is None or now <= before:
            return 2 * self.low
        per_step = (now - before) / (self.low - previous)
        return self.low + 1 + int((self._budget - now) / per_step)


def _first_too_large(search: _Search, asked: int, most: int) -> int | None:
    """A number that does not fit, nearby if possible; ``None`` where all up to ``most`` do."""
    if asked >= most:
        return None
    previous, step = asked, min(2 * asked, most)
    while search.fits(step):
        if step == most:
            return None
        previous, search.low = search.low, step
        ahead = max(search.beyond(previous), search.low + 1)
        known = search.low - previous
        step = min(most, ahead if ahead > search.low + 1 else search.low + max(1, known))
    return step
