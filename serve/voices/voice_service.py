"""Voice service: the parts that work on voices, built around one library.

In:    the library, the configuration, the service's own synthesis
Out:   library for plain reads, maker for changes, sampler for previews and scores, loudness for dialogues
Owns:  the parts
Never: HTTP
"""

from pipeline.protocols import RecordingEncoder, SpeechStream
from pipeline.voices.library import VoiceLibrary
from serve.config.app_config import VoicesConfig
from serve.voices.voice_loudness import VoiceLoudness
from serve.voices.voice_maker import VoiceMaker
from serve.voices.voice_sampler import VoiceSampler


class VoiceService:
    """The parts that the routes about voices use."""

    def __init__(
        self,
        library: VoiceLibrary,
        config: VoicesConfig,
        stream: SpeechStream,
        encoder: RecordingEncoder,
        *,
        model: str,
        max_prompt: int,
        speaks: tuple[str, ...] = ("zh", "en"),
    ) -> None:
        """
        Args:
            stream: the service's own synthesis.
            model: the checkpoint, for the records.
            max_prompt: the engine's longest prompt [positions].
            speaks: languages of the checkpoint.
        """
        self.library = library
        self.sampler = VoiceSampler(library, stream, speaks=speaks)
        self.loudness = VoiceLoudness(library, self.sampler, config.loudness_lufs)
        self.maker = VoiceMaker(library, config, self.sampler, encoder, model=model, max_prompt=max_prompt)
