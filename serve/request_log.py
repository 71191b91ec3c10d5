"""Request log: one line when a request is understood, one when it is over. Nothing in between.

In:    what was ordered, what came of it
Out:   log lines: words for people, the same as fields for machines (`logging_config: {encoding: JSON}`)
Owns:  nothing
Never: text, audio, names of voices, keys, anything of a client's but its key's id and the request id it may choose
"""

import logging

from serve.figures import Outcome, SpeechFigures
from serve.schemas import SpeechOrder
from serve.stages import Stages

# Child of Ray's own logger by name alone: under Serve its handler writes these lines, elsewhere logging's root does.
LOG = logging.getLogger("ray.serve.chattts")

FIELDS = "ray_serve_extra_fields"  # Serve's JSON formatter puts what is in it beside the message


def log_in(request_id: str, key: str, order: SpeechOrder) -> None:
    """The request was understood and is on its way."""
    _say(logging.INFO, "in", {"request": request_id, "key": key, **_ordered(order)})


def log_out(request_id: str, key: str, order: SpeechOrder | None, figures: SpeechFigures, stages: Stages) -> None:
    """It is over, however it ended; `order` is None when it was never understood."""
    spoken: dict[str, object] = {}
    if figures.first_audio_s is not None:
        spoken["ttfb_s"] = round(figures.first_audio_s, 4)
        spoken["stalled_s"] = round(figures.stalled_s, 4)
    if figures.audio_s > 0:
        spoken["rtf"] = round(figures.took_s / figures.audio_s, 4)
    _say(
        logging.WARNING if figures.code else logging.INFO,
        "out",
        {
            "request": request_id,
            "key": key,
            "outcome": figures.outcome.value,
            **({"code": figures.code} if figures.code else {}),
            **({} if order is None else _ordered(order)),
            **({} if figures.outcome is Outcome.REFUSED and not stages.segments else stages.figures()),
            "audio_s": round(figures.audio_s, 3),
            "took_s": round(figures.took_s, 4),
            **spoken,
        },
    )


def _ordered(order: SpeechOrder) -> dict[str, object]:
    return {"characters": len(order.request.text), "container": order.audio.container, "streamed": order.streamed}


def _say(level: int, event: str, fields: dict[str, object]) -> None:
    words = " ".join(f"{name}={value}" for name, value in fields.items())
    LOG.log(level, "speech %s %s", event, words, extra={FIELDS: {"event": event, **fields}})
