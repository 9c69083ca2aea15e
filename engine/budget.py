"""How many guesses are worth a pass here: what a pass costs, and how often guesses come true.

Both are learned online, per session. A probability that a memory states is a claim about some
earlier context; `Calibration` turns it into how often such claims held. `PassCost` follows the time
of a pass by its size: a token more costs next to nothing on a data-centre GPU, and a tenth of a
pass for a small model on two cores. Knows no tokens and no clock.
"""

OUTLIER = 2.0
"""A pass that took this many times the expected is counted as if it had taken just that."""


class PassCost:
    """Time of a pass over n tokens as a line, base + slope * n, by decayed least squares.

    A prior keeps the slope near 3 % of the base until passes of different sizes were seen.
    """

    DECAY = 0.98
    PRIOR_SHARE = 0.03
    PRIOR_WEIGHT = 100.0
    FIRST_PASSES = 2
    """Passes that are not counted: they allocate and warm up."""

    def __init__(self) -> None:
        self.base, self.slope = 1.0, self.PRIOR_SHARE
        self._passes = 0
        self._weight = self._n = self._t = self._nn = self._nt = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A pass over this many tokens, root included, took this long."""
        self._passes += 1
        if self._passes <= self.FIRST_PASSES:
            return
        if self._weight > 1:
            seconds = min(seconds, OUTLIER * (self.base + self.slope * tokens))
        keep, n = self.DECAY, float(tokens)
        self._weight = keep * self._weight + 1
        self._n = keep * self._n + n
        self._t = keep * self._t + seconds
        self._nn = keep * self._nn + n * n
        self._nt = keep * self._nt + n * seconds
        self._fit()

    def floor(self, expected: float, tokens: int) -> float:
        """The least probability at which one more token raises expected tokens per second.

        With E expected tokens for a cost C, a node of probability p and cost s is worth its slot
        if (E + p) / (C + s) > E / C, that is p > E * s / C.

        Args:
            expected: tokens that the pass is expected to commit so far, bonus token included.
            tokens: tokens in the pass so far, root included.
        """
        return expected * self.slope / (self.base + self.slope * tokens)

    def _fit(self) -> None:
        """Minimise the squared errors + PRIOR_WEIGHT * (slope - PRIOR_SHARE * base)^2."""
        share, prior = self.PRIOR_SHARE, self.PRIOR_WEIGHT
        bb, bs, ss = (
            self._weight + prior * share * share,
            self._n - prior * share,
            self._nn + prior,
        )
        determinant = bb * ss - bs * bs
        base = (self._t * ss - self._nt * bs) / determinant
        slope = (self._nt * bb - self._t * bs) / determinant
        self.base = max(base, 1e-9)
        self.slope = max(slope, 0.002 * self.base)


class Calibration:
    """How often a guess is chosen if its parent is, by kind of guess and by claimed probability.

    Counts start as if each cell had been seen a few times, and forget slowly.
    """

    BINS = 12
    PRIOR_WEIGHT = 8.0
    MEMORY = 400.0
    """Guesses a cell remembers."""

    def __init__(self, trust: tuple[float, ...]) -> None:
        """`trust`: of each kind, which share of a claim to believe before anything was seen."""
        claims = [(b + 0.5) / self.BINS for b in range(self.BINS)]
        weight = self.PRIOR_WEIGHT
        self._seen = [[weight] * self.BINS for _ in trust]
        self._true = [[weight * share * claim for claim in claims] for share in trust]
        self._share = [[share] * self.BINS for share in trust]

    def survival(self, kind: int, claim: float) -> float:
        """Probability that a guess with this claimed probability is chosen."""
        return claim * self._share[kind][min(int(claim * self.BINS), self.BINS - 1)]

    def observe(self, kind: int, claim: float, chosen: bool) -> None:
        """A guess whose parent was chosen was chosen itself, or not."""
        cell = min(int(claim * self.BINS), self.BINS - 1)
        seen, true = self._seen[kind], self._true[kind]
        seen[cell] += 1
        true[cell] += chosen
        if seen[cell] > self.MEMORY:
            seen[cell] /= 2
            true[cell] /= 2
        self._share[kind][cell] = true[cell] / seen[cell] * self.BINS / (cell + 0.5)
