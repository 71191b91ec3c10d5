"""Request log: one line when a request is understood, one when it is over. Nothing in between.

In:    what was ordered, what came of it
Out:   log lines: words for people, the same as fields for machines (`logging_config: {encoding: JSON}`)
Owns:  nothing
Never: text, audio, names of voices, keys, anything of a client's but its key's id and the request id it may choose
"""

import logging

from serve.figures import Outcome, SpeechFigures
from serve.schemas import SpeechOrder
from serve.stages import Fields, Stages

# Child of Ray's own logger by name alone: under Serve its handler writes these lines, elsewhere logging's root does.
LOG = logging.getLogger("ray.serve.chattts")

FIELDS = "ray_serve_extra_fields"  # Serve's JSON formatter puts what is in it beside the message


def log_in(request_id: str, key: str, order: SpeechOrder) -> None:
    """The request was understood and is on its way."""
    _say(logging.INFO, "in", {"request": request_id, "key": key, **_ordered(order)})


def log_out(request_id: str, key: str, order: SpeechOrder | None, figures: SpeechFigures, stages: Stages) -> None:
    """It is over, however it ended; `order` is None when it was never understood."""
    ordered = {} if order is None else _ordered(order)
    became = traced(figures, stages)
    level = logging.WARNING if figures.code else logging.INFO
    _say(level, "out", {"request": request_id, "key": key, **ordered, **became})


def traced(figures: SpeechFigures, stages: Stages) -> Fields:
    """What became of a request: the same in its line and in its trace."""
    spoken: Fields = {}
    if figures.code:
        spoken["code"] = figures.code
    if figures.first_audio_s is not None:
        spoken["ttfb_s"] = round(figures.first_audio_s, 4)
        spoken["stalled_s"] = round(figures.stalled_s, 4)
    if figures.audio_s > 0:
        spoken["rtf"] = round(figures.took_s / figures.audio_s, 4)
    passed = {} if figures.outcome is Outcome.REFUSED and not stages.segments else stages.figures()
    return {
        "outcome": figures.outcome.value,
        "audio_s": round(figures.audio_s, 3),
        "took_s": round(figures.took_s, 4),
        **spoken,
        **passed,
    }


def _ordered(order: SpeechOrder) -> Fields:
    request = order.request
    return {
        "model": request.model,
        "lane": request.claim.lane.value,
        "characters": len(request.text),
        "container": order.audio.container,
        "streamed": order.streamed,
    }


def _say(level: int, event: str, fields: Fields) -> None:
    words = " ".join(f"{name}={value}" for name, value in fields.items())
    LOG.log(level, "speech %s %s", event, words, extra={FIELDS: {"event": event, **fields}})
