"""Clock: seconds that stand still until a test moves them."""


class HeldClock:
    """Time of its own; several threads may read it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Time passes at once. Whoever sleeps until a time has to be woken."""
        self.now += seconds
