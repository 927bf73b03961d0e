"""Paint progress bars as tqdm does: when it paints, what it writes, and how it smooths the rate.

Enters: moments and counts. Leaves: bars, each with the carriage return in front.

Source: tqdm/std.py of tqdm 4.60 and later (`update`, `format_meter`, `EMA`).
"""

#: tqdm's defaults: the share of the newest rate in the smoothed one, and seconds between two bars at least.
SMOOTHING = 0.3
MIN_INTERVAL_S = 0.1


class Bar:
    """One progress bar that began at a moment."""

    def __init__(
        self, total: int | None, began_s: float, *, name: str = "", smoothing: float = SMOOTHING, unit: str = "it"
    ) -> None:
        self.total, self.began_s, self.name, self.unit, self.smoothing = total, began_s, name, unit, smoothing
        self.n = self.painted_n = 0
        self.painted_s = began_s
        self.least_n = 0.0
        self.sums = [0.0, 0.0]
        self.calls = 0

    def update(self, now_s: float, by: int = 1) -> str:
        """Count on; gives the bar, or nothing where tqdm does not paint."""
        self.n += by
        new, took_s = self.n - self.painted_n, now_s - self.painted_s
        if new < self.least_n or took_s < MIN_INTERVAL_S:
            return ""
        if self.smoothing:
            for i, value in enumerate((new, took_s)):
                self.sums[i] = self.smoothing * value + (1 - self.smoothing) * self.sums[i]
            self.calls += 1
        text = self.paint(now_s)
        self.least_n = self.smoothing * new * MIN_INTERVAL_S / took_s + (1 - self.smoothing) * self.least_n
        self.painted_n, self.painted_s = self.n, now_s
        return text

    def paint(self, now_s: float, postfix: str = "") -> str:
        """Give the bar as it is now."""
        elapsed_s = now_s - self.began_s
        rate = self.sums[0] / self.sums[1] if self.calls else self.n / elapsed_s if elapsed_s and self.n else None
        if rate is None:
            speed = f"?{self.unit}/s"
        elif rate < 1:
            speed = f"{1 / rate:5.2f}s/{self.unit}"
        else:
            speed = f"{rate:5.2f}{self.unit}/s"
        postfix = f", {postfix}" if postfix else ""
        name = f"{self.name}: " if self.name else ""
        if self.total is None:
            return f"\r{name}{self.n}{self.unit} [{clock(elapsed_s)}, {speed}{postfix}]"
        filled = int(10 * self.n / self.total)
        left = clock((self.total - self.n) / rate) if rate else "?"
        return (
            f"\r{name}{100 * self.n / self.total:3.0f}%|{'█' * filled}{' ' * (10 - filled)}| {self.n}/{self.total} "
            f"[{clock(elapsed_s)}<{left}, {speed}{postfix}]"
        )


def clock(seconds: float) -> str:
    """Write seconds as tqdm does, rounded down."""
    minutes, s = divmod(int(seconds), 60)
    h, m = divmod(minutes, 60)
    return f"{h}:{m:02d}:{s:02d}" if h else f"{m:02d}:{s:02d}"
