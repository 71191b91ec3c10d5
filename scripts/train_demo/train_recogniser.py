"""Train recogniser: trains the recogniser of Mandarin syllables on voices that teach no demo voice.

In:    espeak-ng
Out:   syllable_recogniser.safetensors, a log line per hundred steps
Owns:  the voices it learns from, the distortions
Never: the network (syllable_recogniser.py)

    python -m scripts.train_demo.train_recogniser --steps 1200

The speech is distorted, so that the recogniser does not need what a vocoder smooths away. A second head, which must name the
sound of every frame, makes it learn ten times faster.
"""

import argparse
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from scripts.evaluate.listening import syllables_of
from scripts.train_demo.held_out import held_out
from scripts.train_demo.mandarin_teacher import MANDARIN_VOICES, RATE, MandarinVoice, Spoken, speak
from scripts.train_demo.mandarin_texts import mandarin
from scripts.train_demo.syllable_recogniser import (
    BANDS,
    BLANK,
    FILE,
    SyllableNetwork,
    SyllableRecogniser,
    as_heard,
    features,
    labels,
)
from scripts.train_demo.word_errors import edits

VARIANTS = ("+m1", "+m2", "+m4", "+m5", "+m6", "+m7", "+f1", "+f3", "+f5")
ROWS = 16
OUTPUT_RATE = 50  # frames of the network's output a second
WARM_UP_STEPS = 100
REPORT_STEPS = 50


def utterance(draw: random.Random) -> tuple[NDArray[np.float32], Spoken]:
    """Returns a random text's samples at RATE, distorted, and what is spoken in them."""
    while True:
        text = mandarin(draw)
        voice = MandarinVoice(draw.choice(VARIANTS), draw.randint(20, 80), draw.randint(30, 70))
        if (spoken := speak(text, voice, draw.randint(110, 260))) is not None:
            return distorted(spoken.samples, draw), spoken


def distorted(samples: NDArray[np.float32], draw: random.Random) -> NDArray[np.float32]:
    """Returns the samples at a level, with noise and with a tilted spectrum."""
    noise = np.random.default_rng(draw.getrandbits(32)).standard_normal(len(samples)).astype(np.float32)
    loudness = float(np.sqrt(np.mean(samples**2))) or 1.0
    tilt = draw.uniform(-0.5, 0.7)
    sound = samples * np.float32(0.1 / loudness)
    sound = sound - np.float32(tilt) * np.concatenate([[0], sound[:-1]]).astype(np.float32)
    return (sound + noise * np.float32(0.1 * 10 ** draw.uniform(-2.5, -0.9))).astype(np.float32)


def blurred(mel: Tensor, draw: random.Random) -> Tensor:
    """Returns frames (BANDS, T) smoothed along time or bands, with some of each left out."""
    if draw.random() < 0.5:
        mel = F.avg_pool1d(mel[None], 3, 1, 1, count_include_pad=False)[0]
    if draw.random() < 0.3:
        mel = F.avg_pool1d(mel.T[None], 3, 1, 1, count_include_pad=False)[0].T
    mel = mel + draw.uniform(0.05, 0.3) * torch.randn(mel.shape)
    mel = mel + draw.uniform(0, 0.8) * F.interpolate(torch.randn(1, 1, 6), BANDS, mode="linear")[0, 0][:, None]
    band, start = draw.randrange(BANDS - 8), draw.randrange(max(1, mel.shape[1] - 6))
    mel[band : band + draw.randint(0, 8)] = 0
    mel[:, start : start + draw.randint(0, 6)] = 0
    return mel


def sounds(spoken: Spoken, frames: int) -> Tensor:
    """Returns the class that sounds in each output frame (frames,); BLANK in silences."""
    found = torch.full((frames,), BLANK)
    for syllable, start, inner, end in spoken.syllables:
        *initial, final = labels([syllable])
        begin, middle, stop = (round(time_s * OUTPUT_RATE) for time_s in (start, inner if initial else start, end))
        found[begin:middle] = initial[0] if initial else BLANK
        found[middle:stop] = final
    return found


def batch(draw: random.Random) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns frames (ROWS, BANDS, T), classes (all,), lengths of the outputs, numbers of classes, sounds (ROWS, T / 2)."""
    frames, spoken = [], []
    for _ in range(ROWS):
        samples, said = utterance(draw)
        frames.append(blurred(features(samples), draw))
        spoken.append(said)
    longest = max(one.shape[1] for one in frames)
    padded = torch.stack([F.pad(one, (0, longest - one.shape[1])) for one in frames])
    lengths = torch.tensor([(one.shape[1] + 1) // 2 for one in frames])
    targets = [labels([syllable for syllable, *_ in said.syllables]) for said in spoken]
    counts = torch.tensor([len(row) for row in targets])
    sounding = torch.stack([sounds(said, (longest + 1) // 2) for said in spoken])
    return padded, torch.tensor([one for row in targets for one in row]), lengths, counts, sounding


def main() -> None:
    """Trains and writes the weights."""
    parser = argparse.ArgumentParser(description="Train the recogniser of Mandarin syllables.")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--rate", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    draw, network = random.Random("recogniser"), SyllableNetwork()
    optimiser = torch.optim.AdamW(network.parameters(), args.rate, betas=(0.9, 0.98), weight_decay=0.01)
    began, total = time.time(), 0.0
    for step in range(1, args.steps + 1):
        factor = min(step / WARM_UP_STEPS, 2 * (1 - step / (args.steps + 1)), 1.0)
        optimiser.param_groups[0]["lr"] = args.rate * factor
        mel, targets, lengths, counts, sounding = batch(draw)
        with torch.autocast("cpu", torch.bfloat16, enabled=torch.cpu._is_avx512_bf16_supported()):
            recognised, named = network(mel)
        found = recognised.float().log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(found, targets, lengths, counts, BLANK, zero_infinity=True)
        loss = loss + F.cross_entropy(named.float().flatten(0, 1), sounding.flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimiser.step()
        total += loss.item()
        if step % REPORT_STEPS == 0 or step == args.steps:
            rates = ", ".join(f"{voice.variant or 'plain'} {measured(network, voice):.3f}" for voice in MANDARIN_VOICES)
            print(f"{step} steps, {time.time() - began:.0f} s, loss {total / REPORT_STEPS:.3f}, errors: {rates}", flush=True)
            total = 0.0
            network.train()
            save_file({name: value.half() for name, value in network.state_dict().items()}, FILE)


def measured(network: SyllableNetwork, voice: MandarinVoice) -> float:
    """Returns the share of wrong syllables in the judged sentences, said by a voice that the network did not learn from."""
    recogniser, wrong, total = SyllableRecogniser(network), 0, 0
    for sentence in held_out("mandarin"):
        wanted = syllables_of(sentence)
        spoken = speak(" ".join(wanted), voice)
        assert spoken is not None, sentence
        wrong += edits(as_heard(wanted), recogniser.transcribe(spoken.samples, RATE))
        total += len(wanted)
    return wrong / total


if __name__ == "__main__":
    main()
