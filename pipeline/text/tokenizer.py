"""Tokenizer: writes a segment and a voice as the prompt ChatTTS was trained on.

In:    Segment, Voice
Out:   Prompt:  CODE  [Stts] [spk_emb] sample text [speed_k] text [Ptts] sample codes
                TEXT  [Sbreak] text [Pbreak] [oral_k] [laugh_k] [break_k]
Owns:  the vocabulary (read-only)
Never: torch, the GPU, raw user text (brackets that are no control tag are dropped here again)
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.checkpoint.layout import TOKENIZER_FILE
from pipeline.checkpoint.manifest import read_verified
from pipeline.errors import CheckpointError, TextTooLong
from pipeline.spec import CODEBOOKS, CONTROL_TAGS
from pipeline.text.markup.control_tags import neutralise
from pipeline.text.pronunciation import read_pronunciation
from pipeline.types import Head, Prompt, RefineParams, Segment, Voice

SPEED_TOKENS = 10
PROMPT_MARKS = (
    *("[Stts]", "[Ptts]", "[spk_emb]", "[empty_spk]", "[Sbreak]", "[Pbreak]", "[Ebreak]"),
    *(f"[speed_{k}]" for k in range(SPEED_TOKENS)),
)
"""Special tokens that only this module may write; of them [speed_k] may also occur in a text."""
UNKNOWN_TOKEN = "[UNK]"
REMEMBERED_CHARACTERS = 65_536


class PromptTokenizer:
    """The checkpoint's vocabulary and the two prompt layouts. Threads may share it: it never changes."""

    def __init__(self, checkpoint: Path, *, max_prompt: int) -> None:
        """
        Args:
            max_prompt: longest prompt, voice sample included [positions].

        Raises:
            CheckpointError: no readable tokenizer, or one without ChatTTS's special tokens.
        """
        self._file = checkpoint / TOKENIZER_FILE
        self._max_prompt = max_prompt
        self._tokenizer = _open(checkpoint, self._file)
        self._pronunciation = read_pronunciation(checkpoint)
        self._speaker_id = self._special_id("[spk_emb]")
        self._refine_end_id = self._special_id("[Ebreak]")
        # Upstream's vocabulary ends with the tokens of speaking habits, from [break_0] on: a refined text keeps only lower ids.
        self._first_habit_id = self._special_id("[break_0]")
        spoken_tag_ids = {self._special_id(tag) for tag in CONTROL_TAGS}
        special_ids = {token_id for token_id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        for mark in PROMPT_MARKS:
            special_ids.add(self._special_id(mark))
        self._forbidden_ids = special_ids - spoken_tag_ids
        self._unknown_id = self._tokenizer.token_to_id(UNKNOWN_TOKEN)
        self._knows_character = lru_cache(REMEMBERED_CHARACTERS)(self._is_known)

    def knows(self, text: str) -> bool:
        """True if a text without brackets becomes tokens of the vocabulary, none of them [UNK].

        The prompts below follow upstream, [UNK] included. The model was not trained on it and speaks noise, so unknown words
        are dropped from a text before.
        """
        return self._knows_character(text) if len(text) == 1 else self._is_known(text)

    def _is_known(self, text: str) -> bool:
        return self._unknown_id not in self._encode(text)

    def code_prompt(self, segment: Segment, voice: Voice, *, speed_token: int, max_steps: int) -> Prompt:
        """Returns the prompt with which `voice` speaks the segment.

        Raises:
            TextTooLong: the prompt, voice sample included, has more than max_prompt positions.

        Source: ChatTTS/model/speaker.py `decorate_code_prompts`, ChatTTS/model/tokenizer.py `encode`.
        """
        before, text = _code_text(segment, voice, speed_token)
        token_ids = self._encode(f"{before}{text}[Ptts]")
        ids, text_mask = self._with_sample(token_ids, voice.sample_codes)
        self._check_length(len(ids))
        return Prompt(
            ids=ids,
            text_mask=text_mask,
            head=Head.CODE,
            segment=segment,
            max_steps=max_steps,
            speaker=voice.embedding,
            speaker_position=None if voice.embedding is None else token_ids.index(self._speaker_id),
        )

    def places(self, segment: Segment, voice: Voice, *, speed_token: int) -> list[tuple[int, int] | None]:
        """Returns for each text position of the code prompt the characters of the segment's text that it stands for.

        None: it stands for none of them. The segment's text is as neutralise and strip leave it.
        """
        before, text = _code_text(segment, voice, speed_token)
        whole = f"{before}{text}[Ptts]"
        letters = [(at, at + 1) for at in range(len(whole))]
        written = letters if self._pronunciation is None else self._pronunciation.places(whole)
        inside = range(len(before), len(before) + len(text))
        places: list[tuple[int, int] | None] = []
        for start, stop in self._tokenizer.encode(self.pronounced(whole), add_special_tokens=False).offsets:
            first, last = written[start][0], written[max(start, stop - 1)][1]
            places.append((first - len(before), last - len(before)) if first in inside and last - 1 in inside else None)
        return places

    def refine_prompt(self, segment: Segment, refine: RefineParams, *, max_steps: int) -> Prompt:
        """Returns the prompt for rewriting the segment with the given speaking habits.

        Raises:
            TextTooLong: the prompt has more than max_prompt positions.

        Source: ChatTTS/model/speaker.py `decorate_text_prompts`.
        """
        habits = f"[oral_{refine.oral}][laugh_{refine.laugh}][break_{refine.pause}]"
        token_ids = self._encode(f"[Sbreak]{neutralise(segment.text).strip()}[Pbreak]{habits}")
        self._check_length(len(token_ids))
        ids, text_mask = self._with_sample(token_ids, None)
        return Prompt(
            ids=ids, text_mask=text_mask, head=Head.TEXT, segment=segment, max_steps=max_steps, eos_token=self._refine_end_id
        )

    def decode_refined(self, ids: Iterable[int]) -> str:
        """Returns the refined text, control tags included, without the tokens from [break_0] on, as upstream does
        (ChatTTS/core.py `infer`).

        Special tokens that shape prompts, and [UNK], are dropped as well: upstream would feed them back into its
        next prompt.
        """
        spoken = [int(i) for i in ids if i < self._first_habit_id and int(i) not in self._forbidden_ids]
        return str(self._tokenizer.decode(spoken, skip_special_tokens=False))

    def pronounced(self, text: str) -> str:
        """Returns a text as the vocabulary reads it: words by their phones, where the checkpoint brings a dictionary."""
        return text if self._pronunciation is None else self._pronunciation.spoken(text)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(self.pronounced(text), add_special_tokens=False).ids)

    def _with_sample(
        self, token_ids: list[int], sample_codes: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns ids (S, 4), text repeated over the codebooks before the sample's codes, and the text mask (S,)."""
        text = np.repeat(np.array(token_ids, np.int64)[:, None], CODEBOOKS, axis=1)
        codes = np.empty((0, CODEBOOKS), np.int64) if sample_codes is None else sample_codes
        text_mask = np.arange(len(text) + len(codes)) < len(text)
        return np.concatenate([text, codes]), text_mask

    def _check_length(self, positions: int) -> None:
        if positions > self._max_prompt:
            raise TextTooLong(
                f"a segment of the text needs a prompt of {positions} positions, voice sample included; the limit is "
                f"{self._max_prompt} (engine.max_prompt): use a shorter text or a voice with a shorter sample",
                param="input",
            )

    def _special_id(self, token: str) -> int:
        ids = self._encode(token)
        if len(ids) != 1 or self._tokenizer.id_to_token(ids[0]) != token:
            raise CheckpointError(
                f"{self._file}: expected the special token {token} to be one entry of the vocabulary, found "
                f"{len(ids)} pieces; this is not a ChatTTS tokenizer"
            )
        return ids[0]


def _code_text(segment: Segment, voice: Voice, speed_token: int) -> tuple[str, str]:
    """Returns what stands before the segment's text in a code prompt, and that text."""
    assert 0 <= speed_token < SPEED_TOKENS
    speaker_mark = "[empty_spk]" if voice.embedding is None else "[spk_emb]"
    before = f"[Stts]{speaker_mark}{neutralise(voice.sample_text)}[speed_{speed_token}]"
    return before, neutralise(segment.text).strip()


def _open(checkpoint: Path, file: Path) -> Tokenizer:
    content = read_verified(checkpoint, TOKENIZER_FILE)
    try:
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises bare Exception for every kind of broken file
        raise CheckpointError(f"{file}: expected a tokenizer of the `tokenizers` library, found: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
