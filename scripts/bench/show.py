"""Show: measured figures as text for tables.

In:    figures
Out:   text
Owns:  nothing
Never: measuring
"""


def shown(values: dict[str, float | int]) -> str:
    """Returns the median, and the range when there was more than one round."""
    middle = f"{values['median']:.2f}"
    return middle if values["n"] == 1 else f"{middle} ({values['min']:.2f} - {values['max']:.2f})"


def memory_line(memory: dict[str, float]) -> str:
    """Returns what a step reads, in which time, and the share of the copy bandwidth that this takes."""
    return (
        f"{memory['bytes_per_step'] / 1e6:.0f} MB / {1e3 * memory['step_s']:.1f} ms / "
        f"{memory['copy_bytes_per_s'] / 1e9:.1f} GB/s = {memory['fraction_of_copy_bandwidth']:.0%}"
    )
