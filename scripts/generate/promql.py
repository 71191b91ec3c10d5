"""PromQL: the queries that panels and alerts share.

In:    names of metrics
Out:   PromQL
Never: a name of its own
"""


def quantile(share: float, metric: str, by: str = "le") -> str:
    """Returns a quantile over five minutes of a histogram, over all replicas."""
    return f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket[5m])))"


def share(part: str, whole: str, window: str) -> str:
    """Returns one counter's rate relative to another's; no result without traffic, instead of a division by zero."""
    return f"sum(rate({part}[{window}])) / (sum(rate({whole}[{window}])) > 0)"


def gained(counter: str, window: str, by: str = "") -> str:
    """Returns how much a counter has grown, over all replicas. A series that is as young as its first event has grown by it."""
    return f"sum{f' by ({by})' if by else ''} (clamp_min({counter} - {counter} offset {window}, 0) or {counter})"
