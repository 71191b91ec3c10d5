"""Show: figures as people read them."""


def shown(values: dict[str, float | int]) -> str:
    """Median, and the range of the repeats."""
    middle = f"{values['median']:.2f}"
    return middle if values["n"] == 1 else f"{middle} ({values['min']:.2f} - {values['max']:.2f})"


def physics_line(physics: dict[str, float]) -> str:
    """What a step reads, against what the memory gives."""
    return (
        f"{physics['bytes_a_step'] / 1e6:.0f} MB / {1e3 * physics['step_s']:.1f} ms / "
        f"{physics['copy_bytes_a_second'] / 1e9:.1f} GB/s = {physics['fraction_of_copy_bandwidth']:.0%}"
    )
