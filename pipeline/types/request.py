"""Request: what a caller wants spoken, by which voice, how, and how urgently.

In:    nothing
Out:   SynthesisRequest and the values it is made of
Owns:  nothing
Never: text rules, tokens, I/O
"""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

MIN_SPEED = 0.25
MAX_SPEED = 4.0


class Lane(StrEnum):
    """How urgent a request is; the first is the most urgent."""

    INTERACTIVE = "interactive"
    """somebody waits for it now"""
    STANDARD = "standard"
    BULK = "bulk"
    """whenever there is room; may be interrupted and goes on later"""


class RefineGuard(StrEnum):
    """What becomes of a refined text that lost, changed or invented a word."""

    STRICT = "strict"
    """the request is refused"""
    DROP = "drop"
    """the text it was made from is spoken"""
    OFF = "off"
    """it is spoken as it is"""


class SeedMode(StrEnum):
    """How a seed becomes draws."""

    COUNTER = "counter"
    """one uniform per (seed, segment, attempt; step, codebook): the same in any slot, batch, replica or device"""
    UPSTREAM = "upstream"
    """one constant noise tensor per seed, as ChatTTS draws at batch 1: for seeds people bring along"""


class CacheMode(StrEnum):
    """What a request wants of the cache. The names are HTTP's."""

    DEFAULT = "default"
    """what is kept or under way is heard, the rest is made and kept"""
    NO_STORE = "no-store"
    """nothing is looked up, joined or kept"""
    REFRESH = "refresh"
    """it is made, whatever is there, and kept in its place"""
    ONLY_IF_CACHED = "only-if-cached"
    """what is not there is not made"""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are drawn. The defaults are ChatTTS's own for audio codes."""

    temperature: float = 0.3
    top_p: float = 0.7
    top_k: int = 20
    repetition_penalty: float = 1.05
    seed: int = 0
    """0 .. 2**32 - 1"""
    seed_mode: SeedMode = SeedMode.COUNTER
    attempt: int = 0
    """which roll of the same seed this is; part of the COUNTER key"""
    min_steps: int = 1
    """EOS cannot be drawn before this many steps: 1 makes an empty segment impossible without any retry"""


@dataclass(frozen=True, slots=True)
class SchedulingParams:
    """How a request stands in line."""

    lane: Lane = Lane.STANDARD
    tenant: str = ""
    """who shares fairly with the others of its lane: the id of a key"""
    first_audio_s: float | None = None
    """its first audio must be there this soon, or it is refused at once; None: whenever it comes [s]"""
    first_steps: int = 1
    """steps the first audio takes"""
    blocks: tuple[int, ...] = ()
    """steps that are of use together: those of the first StepBlock, the second, ..., the last size repeats; empty: any"""


@dataclass(frozen=True, slots=True)
class RefineParams:
    """The optional text-to-text pass: how much of each manner ChatTTS may add."""

    oral: int = 2
    """0 .. 9"""
    laugh: int = 0
    """0 .. 2"""
    pause: int = 4
    """0 .. 7, upstream's [break_k]"""
    guard: RefineGuard = RefineGuard.DROP
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.7, repetition_penalty=1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """Who speaks.

    `embedding` is None for ChatTTS's own default ([empty_spk]); it is kept in float16 because upstream's
    speaker strings are, and because normalising it in another precision changes the codes.
    """

    name: str
    embedding: NDArray[np.float16] | None  # (width,)
    sample_codes: NDArray[np.int64] | None = None  # (n, 4): the codes of a reference recording
    sample_text: str = ""
    """transcript of the reference recording"""
    gain_db: float = 0.0
    """what makes it as loud as the other voices; measured once, so that no sample depends on the ones around it"""
    loudness_lufs: float | None = None
    """how loud it speaks without that gain; None: nobody has measured it"""


@dataclass(frozen=True, slots=True)
class Prosody:
    """How a stretch of text is spoken, beside its words."""

    voice: str | None = None
    """name; None: the request's"""
    rate: float = 1.0
    """factor on the request's speed"""
    gain_db: float = 0.0


class PronunciationKind(StrEnum):
    """How a word says what it is to sound like."""

    ALIAS = "alias"
    """other written text is spoken in its place"""
    PINYIN = "pinyin"
    """syllables with tone numbers"""
    SAY_AS = "say-as"
    """it is read as a kind of thing: date, digits, ..."""


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """Characters [start, stop) of a passage and how they are to sound."""

    start: int
    stop: int
    kind: PronunciationKind
    value: str


@dataclass(frozen=True, slots=True)
class LexiconEntry:
    """How a word sounds wherever it stands."""

    word: str
    """with a capital: exactly so; all small: in any case"""
    kind: PronunciationKind
    value: str


@dataclass(frozen=True, slots=True)
class Passage:
    """Written text that is spoken in one manner: what an SSML document is cut into."""

    text: str
    """empty: nothing but the silence"""
    pronunciations: tuple[Pronunciation, ...] = ()
    """in order, without overlap"""
    control_tags: bool = False
    """whether [laugh], [uv_break] and the like are control tags; else their brackets are dropped"""
    language: str = "auto"
    """auto, zh or en"""
    prosody: Prosody = Prosody()
    silence_ms: int = 0
    """exact silence before the text"""


class Denoise(StrEnum):
    """Whether constant noise is taken out."""

    OFF = "off"
    AUTO = "auto"
    """only under 20 dB of signal over noise"""
    ON = "on"


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """What happens to the samples between vocoder and encoder. The defaults change none."""

    sample_rate: int = 24_000
    """Hz"""
    trim: bool = False
    """cut the quiet before the first sound and after the last one"""
    denoise: Denoise = Denoise.OFF
    gain_db: float = 0.0
    """one gain for the whole, beside the voice's own; what is made louder never exceeds -1 dBTP"""
    loudness_lufs: float | None = None
    """bring each voice to this loudness by one gain, in place of its own; None: whatever it has"""
    fade_ms: float = 0.0
    """rise at the true beginning and fall at the true end"""


@dataclass(frozen=True, slots=True)
class CacheControl:
    """How a request uses the cache of sampled steps."""

    mode: CacheMode = CacheMode.NO_STORE
    tenant: str = ""
    """whose entries: nobody finds another one's"""


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """One request, checked at the door, with everything resolved but the voice."""

    request_id: str
    text: str
    """what is to be spoken; of an SSML document its text content"""
    voice: str
    passages: tuple[Passage, ...] = ()
    """the text in passages, where there is more to say about it than the fields here do; else empty"""
    control_tags: bool = False
    """of a text without passages"""
    tags_taught: bool = True
    """False: no control tag is a token, whatever the checkpoint says: each is dropped and counted"""
    strict: bool = False
    """a text the checkpoint does not know all of is refused"""
    lexicon: tuple[LexiconEntry, ...] = ()
    """of two entries for one word the first counts"""
    normalize: tuple[tuple[str, bool | str], ...] = ()
    """what differs from the defaults of text/normalize's NormalizeOptions: (name, value)"""
    warnings: tuple[tuple[str, int], ...] = ()
    """(code, how often) of what was noticed at the door; SpeechPlan.warnings has them too"""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speed: float = 1.0
    """time-stretch, 0.25 .. 4.0; 1.0 leaves every sample as the vocoder made it"""
    audio: AudioOptions = AudioOptions()
    speed_token: int = 5
    """0 .. 9: ChatTTS's own [speed_k]"""
    refine: RefineParams | None = None
    language: str = "auto"
    """auto, zh or en"""
    model: str = ""
    """the version of the model that speaks, where there are several; empty: the first"""
    scheduling: SchedulingParams = SchedulingParams()
    short_segments: bool = False
    """segments are half as long: slots are free again sooner"""
    skipped_chunk_sizes: int = 0
    """how many of the vocoder's first chunk sizes are left out: fewer windows, first audio later"""
    timeout_s: float = 120.0
    """time left; each process turns it into a deadline of its own monotonic clock"""
    cache: CacheControl = CacheControl()
