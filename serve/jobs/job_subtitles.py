"""Job subtitles: the text of a job as lines on a screen, as far as it is finished.

In:    a view of a job, the notes of its parts
Out:   SubRip or WebVTT
Never: a time of its own: cues lie where their parts are in the audio
"""

from collections.abc import Iterator

from pipeline.books.shelf import Shelf
from serve.jobs.views import JobView
from serve.speech.job import SubtitlesIn
from serve.speech.subtitles import Cue, written


def job_subtitles(view: JobView, shelf: Shelf, kind: SubtitlesIn) -> str:
    """Returns the subtitles of all parts before the first missing one."""
    return written(_cues(view, shelf), kind)


def _cues(view: JobView, shelf: Shelf) -> Iterator[Cue]:
    script, track, rate = view.script, view.track, view.track.sample_rate
    for number, start in enumerate(track.starts):
        part = script.parts[number]
        speaker = part.speaker or part.own.get("voice")
        for cue in shelf.notes(script.keys[number]).cues:
            yield Cue((start + cue.start) / rate, (start + cue.stop) / rate, cue.text, cue.voice or speaker)
