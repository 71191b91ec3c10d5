"""Request: the text to synthesise, its voice, its options and its urgency.

Out:   SynthesisRequest and the values it is made of
Owns:  their defaults; bounds.py has the bounds of what a client may choose
Never: text rules, tokens, I/O
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pipeline.types.timing import Mark, TimeDetail


class Lane(StrEnum):
    """The priority class of a request; the first is the most urgent."""

    INTERACTIVE = "interactive"
    """a listener waits for it now"""
    STANDARD = "standard"
    BULK = "bulk"
    """runs when slots are free; may be interrupted and goes on later"""


class RefineGuard(StrEnum):
    """What happens to a refined text that lost, changed or invented a word."""

    STRICT = "strict"
    """the request is refused"""
    DROP = "drop"
    """the text before the refine pass is spoken"""
    OFF = "off"
    """the refined text is spoken as it is"""


class Latency(StrEnum):
    """What the first audio waits for."""

    EXACT = "exact"
    """every step that affects a sample"""
    LOW = "low"
    """a fixed number of steps, fewer at first: sooner, and the first seconds are an approximation"""


class SegmentLength(StrEnum):
    """How long the segments of a text are."""

    USUAL = "usual"
    HALF = "half"
    SHORTEST = "shortest"
    """eight Chinese characters, or three words"""


class SeedMode(StrEnum):
    """How a seed becomes draws."""

    COUNTER = "counter"
    """one uniform per (seed, segment, attempt; step, codebook): the same in any slot, batch, replica or device"""
    UPSTREAM = "upstream"
    """one constant noise tensor per seed, as ChatTTS draws at batch 1: for seeds that were found with ChatTTS itself"""


class CacheMode(StrEnum):
    """How a request may use the cache. The names are those of HTTP's Cache-Control."""

    DEFAULT = "default"
    """entries and generations in progress are used, the rest is generated and stored"""
    NO_STORE = "no-store"
    """nothing is looked up, joined or stored"""
    REFRESH = "refresh"
    """it is generated in any case and replaces the entry"""
    ONLY_IF_CACHED = "only-if-cached"
    """a request without an entry is refused"""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are drawn. The defaults are ChatTTS's own for audio codes."""

    temperature: float = 0.3
    top_p: float = 0.7
    top_k: int = 20
    repetition_penalty: float = 1.05
    seed: int = 0
    seed_mode: SeedMode = SeedMode.COUNTER
    attempt: int = 0
    """number of the draw with the same seed; part of the COUNTER key"""
    min_steps: int = 1
    """EOS cannot be drawn before this many steps: 1 makes an empty segment impossible without any retry"""

    def of(self, prosody: "Prosody") -> "SamplingParams":
        """Returns how the tokens of a stretch of text are drawn, which may have a seed of its own."""
        return self if prosody.seed is None else replace(self, seed=prosody.seed)


@dataclass(frozen=True, slots=True)
class SchedulingParams:
    """How urgent a request is, and how its first steps are delivered."""

    lane: Lane = Lane.STANDARD
    tenant: str = ""
    """the id of the API key; tenants of one lane share it fairly"""
    first_audio_s: float | None = None
    """promised time to the first audio; a request that cannot meet it is refused at once; None: no promise [s]"""
    first_steps: int = 1
    """steps the first audio takes"""
    blocks: tuple[int, ...] = ()
    """sizes of the first StepBlock, the second, ...; the last size repeats; empty: any size [steps]"""
    latency: Latency = Latency.EXACT
    """what the first audio waits for; no step depends on it, but samples do"""
    skipped_chunk_sizes: int = 0
    """how many of the vocoder's first chunk sizes are skipped: fewer windows, later first audio; the last one never is"""


@dataclass(frozen=True, slots=True)
class RefineParams:
    """The optional text-to-text pass: how much of each speaking habit ChatTTS may add."""

    oral: int = 2
    laugh: int = 0
    pause: int = 4
    """upstream's [break_k]"""
    guard: RefineGuard = RefineGuard.DROP
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.7, repetition_penalty=1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """A speaker.

    `embedding` is None for ChatTTS's own default ([empty_spk]); it is kept in float16 because upstream's
    speaker strings are, and because normalising it in another precision changes the codes.
    """

    name: str
    embedding: NDArray[np.float16] | None  # (width,)
    sample_codes: NDArray[np.int64] | None = None  # (n, 4): the codes of a reference recording
    sample_text: str = ""
    """transcript of the reference recording"""
    gain_db: float = 0.0
    """brings it to the loudness of the other voices; measured once, so that no sample depends on its neighbours [dB]"""
    loudness_lufs: float | None = None
    """integrated loudness without that gain; None: not measured [LUFS]"""


@dataclass(frozen=True, slots=True)
class Prosody:
    """Voice, rate, volume and seed of a stretch of text."""

    voice: str | None = None
    """name; None: the request's"""
    rate: float = 1.0
    """factor on the request's speed"""
    gain_db: float = 0.0
    seed: int | None = None
    """of its draws; None: the request's"""


class PronunciationKind(StrEnum):
    """How the sound of a word is given."""

    ALIAS = "alias"
    """other written text is spoken in its place"""
    PINYIN = "pinyin"
    """syllables with tone numbers"""
    IPA = "ipa"
    """sounds of the International Phonetic Alphabet, for checkpoints whose words are phones"""
    SAY_AS = "say-as"
    """it is read as a kind of thing: date, digits, ..."""


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """The sound of characters [start, stop) of a passage."""

    start: int
    stop: int
    kind: PronunciationKind
    value: str


@dataclass(frozen=True, slots=True)
class LexiconEntry:
    """The sound of a word, wherever it occurs."""

    word: str
    """matched exactly if it has a capital, else in any case"""
    kind: PronunciationKind
    value: str


@dataclass(frozen=True, slots=True)
class Passage:
    """Written text with one prosody; an SSML document becomes a sequence of them."""

    text: str
    """empty: the silence alone"""
    pronunciations: tuple[Pronunciation, ...] = ()
    """in order, without overlap"""
    control_tags: bool = False
    """True: [laugh], [uv_break] and the like are control tags; else their brackets are dropped"""
    language: str = "auto"
    """auto, zh, en or dialect: a Chinese language other than Mandarin"""
    prosody: Prosody = Prosody()
    silence_ms: int = 0
    """exact silence before the text [ms]"""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one speaker of a dialogue says at a time."""

    speaker: str
    """display name"""
    voice: str
    source: tuple[int, int]
    """characters of the request's text: [start, stop)"""


class Denoise(StrEnum):
    """Whether constant noise is removed."""

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
    """gain on top of the voice's own; the limiter keeps what is amplified below -1 dBTP [dB]"""
    loudness_lufs: float | None = None
    """target of each voice, reached by one gain in place of its own; None: no target [LUFS]"""
    fade_ms: float = 0.0
    """rise at the beginning of the stream and fall at its end [ms]"""


@dataclass(frozen=True, slots=True)
class CacheControl:
    """How a request uses the cache of sampled steps."""

    mode: CacheMode = CacheMode.NO_STORE
    tenant: str = ""
    """owner of the entries; no tenant finds another's"""


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """One validated request; everything is resolved but the voice."""

    request_id: str
    text: str
    """the text to speak; for an SSML document its text content"""
    voice: str
    passages: tuple[Passage, ...] = ()
    """the same text in passages, for SSML; else empty"""
    behind: str = ""
    """what was spoken just before, by itself; the reading of the text may depend on it"""
    control_tags: bool = False
    """True: a text without passages may have control tags"""
    keep_control_tags: bool = True
    """False: every control tag is dropped and counted, even those the checkpoint was trained on"""
    strict: bool = False
    """refuse a text that the checkpoint cannot speak completely"""
    lexicon: tuple[LexiconEntry, ...] = ()
    """the first of two entries for one word counts"""
    normalize: tuple[tuple[str, bool | str], ...] = ()
    """what differs from the defaults of text/normalize's NormalizeOptions: (name, value)"""
    warnings: tuple[tuple[str, int], ...] = ()
    """(code, count) of the warnings of validation; SpeechPlan.warnings includes them"""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speed: float = 1.0
    """time-stretch; 1.0 leaves every sample as the vocoder returned it"""
    audio: AudioOptions = AudioOptions()
    speed_token: int = 5
    """0 .. 9: ChatTTS's own [speed_k]"""
    refine: RefineParams | None = None
    language: str = "auto"
    """auto, zh, en or dialect: a Chinese language other than Mandarin"""
    model: str = ""
    """version of the model; empty: the first"""
    scheduling: SchedulingParams = SchedulingParams()
    segment_length: SegmentLength = SegmentLength.USUAL
    keep_expression: bool = True
    """False: of its control tags only [speed_k] counts; the others are dropped and counted"""
    times: TimeDetail = TimeDetail.OFF
    """how finely its times are told; no sample depends on it"""
    retries: int = 0
    """how often a segment is spoken again that lost or repeated a word; needs the times of words"""
    marks: tuple[Mark, ...] = ()
    """in the order of the text"""
    turns: tuple[Turn, ...] = ()
    """of a dialogue, in order; else empty"""
    timeout_s: float = 120.0
    """time left; each process turns it into a deadline of its own monotonic clock"""
    cache: CacheControl = CacheControl()
