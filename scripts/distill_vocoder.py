"""Distil vocoder: a vocoder of at most a million parameters learns to decode as a checkpoint's own does.

In:    a checkpoint; nothing else: its GPT speaks templates of this repository, its vocoder decodes them
Out:   the checkpoint with asset/small/, which `pipeline.vocoder.size: small` reads; OUT/distillation, to resume from
Owns:  the dimensions, the choice of the teacher's parts that the small one begins with
Never: recordings, other voices

    python -m scripts.distill_vocoder CHECKPOINT OUT --seconds 1200

The small one begins as a part of its teacher: the layers, channels and hidden units with the largest weights. Its decoder
learns the teacher's mel frames, its Vocos the teacher's samples, by spectra and by waveform: the teacher's phase is no chance.
There is no small one for codes (`use_decoder: false`).
"""

import argparse
import asyncio
import random
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.layout import SMALL_FILES
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.manifest import file_sha256, read_manifest, write_manifest
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import PipelineConfig
from pipeline.paths import cache_home
from pipeline.spec import HOP, MEL_FRAMES_PER_STEP, SAMPLE_RATE
from pipeline.types import SamplingParams, SynthesisRequest
from pipeline.vocoder.windowed.network import MelDecoder, Vocos
from scripts.train_demo.adversarial import Contest, spectral_loss
from scripts.train_demo.prose import everyday
from scripts.train_demo.train_vocoder import REPORT_S, figures
from scripts.train_demo.training import Schedule, allow_tf32, report, save
from scripts.train_demo.vocoder import Critic
from serve.commands.say import LocalPipeline, open_pipeline

# Most of each: what inverts the Fourier transform costs as much as a million parameters, so fewer would gain little.
BOTTLENECK, OUTPUTS, WIDTH, LAYERS = 64, 128, 192, 4
DECODER_MLP, VOCOS_MLP = 128, 160
FIXED = ("coef", "window", "fb")  # the last words of tensors that are not learned
SENTENCES, AT_ONCE, CHINESE_SHARE = 400, 4, 0.4
HELD_OUT = 8  # sentences
AROUND, CROPPED, ROWS = 12, 40, 8  # steps of context on both sides, steps of a crop, crops
MEL_WEIGHT, WAVE_WEIGHT = 12.0, 10.0
TIMEOUT_S = 600.0

Weights = dict[str, Tensor]


def begun(decoder: Weights, vocos: Weights) -> tuple[Weights, Weights]:
    """Returns the parts of the teacher's tensors that the small vocoder begins with."""
    decoder, vocos = dict(decoder), dict(vocos)
    _cut(
        decoder,
        _strongest(decoder["decoder.conv_in.0.weight"], BOTTLENECK),
        {"decoder.conv_in.0": 0, "decoder.conv_in.2.weight": 1},
    )
    _cut(decoder, _strongest(decoder["decoder.conv_out.weight"], OUTPUTS), {"decoder.conv_out.weight": 0, "out_conv.weight": 1})
    channels = _strongest(decoder["decoder.conv_in.2.weight"], WIDTH)
    _cut(decoder, channels, {"decoder.conv_in.2": 0, "decoder.conv_out.weight": 1})
    decoder = _blocks(decoder, "decoder.decoder_block.", channels, DECODER_MLP)
    channels = _strongest(vocos["head.out.weight"].T, WIDTH)
    _cut(vocos, channels, {"backbone.embed": 0, "backbone.norm": 0, "backbone.final_layer_norm": 0, "head.out.weight": 1})
    return decoder, _blocks(vocos, "backbone.convnext.", channels, VOCOS_MLP)


def _blocks(tensors: Weights, prefix: str, channels: Tensor, mlp_width: int) -> Weights:
    """Returns the tensors with at most LAYERS blocks, evenly chosen, each with fewer channels and hidden units."""
    count = 1 + max(int(name[len(prefix) :].split(".")[0]) for name in tensors if name.startswith(prefix))
    chosen = np.linspace(0, count - 1, min(count, LAYERS)).round().astype(int)
    small = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
    for place, layer in enumerate(chosen):
        old, at = f"{prefix}{layer}.", f"{prefix}{place}."
        small |= {at + name[len(old) :]: tensor for name, tensor in tensors.items() if name.startswith(old)}
        norms = small[f"{at}pwconv1.weight"].norm(dim=1) * small[f"{at}pwconv2.weight"].norm(dim=0)
        units = _strongest(norms[:, None], mlp_width)
        _cut(small, units, {f"{at}pwconv1": 0, f"{at}pwconv2.weight": 1})
        rows = ("dwconv", "norm", "pwconv2", "weight", "gamma")
        _cut(small, channels, {f"{at}{name}": 0 for name in rows} | {f"{at}pwconv1.weight": 1})
    return small


def _strongest(rows: Tensor, most: int) -> Tensor:
    """Returns the places, in order, of the rows with the largest norms."""
    places: Tensor = rows.flatten(1).norm(dim=1).topk(min(most, len(rows))).indices.sort().values
    return places


def _cut(tensors: Weights, places: Tensor, axes: dict[str, int]) -> None:
    """Leaves only some places along an axis of tensors, by name or by the beginning of a name."""
    for name in list(tensors):
        for start, axis in axes.items():
            if name in (start, f"{start}.weight", f"{start}.bias"):
                tensors[name] = tensors[name].index_select(axis, places)


class Small:
    """The small vocoder while it learns."""

    def __init__(self, decoder: Weights, vocos: Weights, device: str) -> None:
        self.parts = tuple(
            {name: tensor.detach().clone().to(device) for name, tensor in part.items()} for part in (decoder, vocos)
        )
        self.learned = list[nn.Parameter]()
        for part in self.parts:
            for name in (name for name in part if name.rsplit(".", 1)[-1] not in FIXED):
                self.learned.append(nn.Parameter(part[name]))
                part[name] = self.learned[-1]

    def __call__(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Maps states (B, T, width) to frames (B, 2 T, 100) and samples (B, 512 T), without AROUND steps at both ends."""
        exists = states.new_ones(len(states), MEL_FRAMES_PER_STEP * states.shape[1], 1)
        mel = MelDecoder(self.parts[0])(states, exists)
        edge = MEL_FRAMES_PER_STEP * AROUND
        return mel[:, edge:-edge], Vocos(self.parts[1])(mel, exists)[:, HOP * edge : -HOP * edge]

    def generate(self, states: Tensor, mel: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Returns samples, and how far frames and waveform are from the teacher's."""
        decoded, ours = self(states)
        distance = (ours - samples).abs().mean() / samples.abs().mean().clamp(min=1e-4)
        return ours, MEL_WEIGHT * (decoded - mel).abs().mean() + WAVE_WEIGHT * distance

    def files(self) -> dict[str, Weights]:
        """Returns the tensors of each file in half precision."""
        halves = ({name: tensor.detach().half().cpu().contiguous() for name, tensor in part.items()} for part in self.parts)
        return dict(zip(SMALL_FILES, halves, strict=True))


class Material:
    """Sentences' states, each with what the teacher makes of them."""

    def __init__(self, states: list[Tensor], decoder: Weights, vocos: Weights, device: str) -> None:
        self._device, self.states = device, [utterance for utterance in states if len(utterance) >= CROPPED + 2 * AROUND]
        teacher = MelDecoder(decoder), Vocos(vocos)
        self.mel, self.samples = [], []
        with torch.inference_mode():
            for steps in self.states:
                exists = torch.ones(1, MEL_FRAMES_PER_STEP * len(steps), 1)
                mel = teacher[0](steps[None], exists)
                self.mel.append(mel[0].clone())
                self.samples.append(teacher[1](mel, exists)[0].clone())
        if len(self.states) <= HELD_OUT:
            raise ValueError(
                f"{len(self.states)} of the sentences are long enough, {HELD_OUT + 1} are needed: raise --sentences"
            )

    def crops(self, draw: random.Random, rows: int) -> tuple[Tensor, ...]:
        """Returns the teacher's samples, the states, the teacher's frames, and the samples again."""
        weights = [len(utterance) for utterance in self.states[HELD_OUT:]]
        numbers = draw.choices(range(HELD_OUT, len(self.states)), weights, k=rows)
        return self._at([(number, draw.randint(0, len(self.states[number]) - CROPPED - 2 * AROUND)) for number in numbers])

    def held_out(self) -> tuple[Tensor, ...]:
        """Returns the same of the middles of sentences that are not learned from."""
        return self._at([(number, (len(self.states[number]) - CROPPED) // 2 - AROUND) for number in range(HELD_OUT)])

    def _at(self, places: list[tuple[int, int]]) -> tuple[Tensor, ...]:
        def cut(tensors: list[Tensor], scale: int, around: int) -> Tensor:
            inner = [(number, begin + AROUND - around, begin + AROUND + CROPPED + around) for number, begin in places]
            return torch.stack([tensors[number][scale * at : scale * end] for number, at, end in inner]).to(self._device)

        samples = cut(self.samples, MEL_FRAMES_PER_STEP * HOP, 0)
        return samples, cut(self.states, 1, AROUND), cut(self.mel, MEL_FRAMES_PER_STEP, 0), samples


async def spoken(config: PipelineConfig, count: int) -> list[Tensor]:
    """Returns the states (n, width) of sentences, by the default voice and by others."""
    draw, results = random.Random(0), list[Tensor]()
    texts = [everyday(draw, CHINESE_SHARE) for _ in range(count)]

    async def speak(local: LocalPipeline, number: int) -> None:
        voice = f"seed:{number}" if number % 2 else "default"
        request = SynthesisRequest(str(number), texts[number], voice, sampling=SamplingParams(seed=number), timeout_s=TIMEOUT_S)
        plan = await local.frontend.plan(request, {voice: local.voices.get(voice)})
        for prompt in plan.prompts:
            blocks = [block.hidden async for block in local.engine.generate(prompt, request.sampling, timeout_s=TIMEOUT_S)]
            results.append(torch.from_numpy(np.concatenate(blocks)))

    async with open_pipeline(config) as local:
        for first in range(0, count, AT_ONCE):
            await asyncio.gather(*(speak(local, number) for number in range(first, min(first + AT_ONCE, count))))
    return results


def write(root: Path, out: Path, small: Small) -> None:
    """Writes the checkpoint with the small vocoder, and its SHA256SUMS."""
    if not (out / "asset").exists():
        shutil.copytree(root / "asset", out / "asset")
    for file, tensors in small.files().items():
        (out / file).parent.mkdir(exist_ok=True)
        save_file(tensors, out / file, metadata={"format": "pt"})
        (out / file).chmod(0o644)
    known = read_manifest(root) or {str(path.relative_to(root)): file_sha256(path) for path in root.glob("asset/**/*.*")}
    write_manifest(out, known | {file: file_sha256(out / file) for file in SMALL_FILES})


def main(arguments: list[str] | None = None) -> None:
    """Trains until the time is over; goes on where it was stopped."""
    parser = argparse.ArgumentParser(description="Learn a small vocoder from a checkpoint's own.")
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sentences", type=int, default=SENTENCES)
    parser.add_argument("--rows", type=int, default=ROWS, help="crops of a step")
    parser.add_argument("--alone", type=float, default=1.0, help="part of the time before judges join: on a GPU 0.3")
    parser.add_argument("--ignore-eos", action="store_true", help="for weights that draw no end token")
    args = parser.parse_args(arguments)
    torch.manual_seed(1)
    allow_tf32()
    folder, root = args.out / "distillation", resolve(args.checkpoint, cache_home())
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "states.pt").exists():
        engine = {"slots": AT_ONCE, "ignore_eos": args.ignore_eos, "max_steps": 256 if args.ignore_eos else 1024}
        config = PipelineConfig.model_validate({"checkpoint": args.checkpoint, "engine": engine})
        save(folder / "states.pt", {"states": asyncio.run(spoken(config, args.sentences))})
    checkpoint = open_checkpoint(root)
    teacher = in_torch(checkpoint.mel_decoder()), in_torch(checkpoint.vocos())
    material = Material(torch.load(folder / "states.pt")["states"], *teacher, args.device)
    file, critic = folder / "small.pt", Critic().to(args.device)
    saved = torch.load(file, map_location=args.device) if file.exists() else None
    decoder, vocos = saved["parts"] if saved else begun(*teacher)
    small = Small(decoder, vocos, args.device)
    if saved:
        critic.load_state_dict(saved["critic"])
    contest = Contest(small.learned, critic, small.generate, args.device)
    schedule, step = Schedule(args.seconds, saved["trained_s"] if saved else 0.0), saved["steps"] if saved else 0
    spoken_s = sum(map(len, material.samples)) / SAMPLE_RATE
    print(f"{sum(map(torch.Tensor.numel, small.learned)):,} parameters, {spoken_s / 60:.1f} minutes of the teacher", flush=True)
    draw, last = random.Random(f"step {step}"), time.monotonic()
    while (progress := schedule.progress) < 1:
        parts = contest.learn(material.crops(draw, args.rows), share=schedule.share(step), is_alone=progress < args.alone)
        step += 1
        if time.monotonic() - last > REPORT_S or schedule.progress >= 1:
            last = time.monotonic()
            with torch.no_grad():
                samples, *inputs = material.held_out()
                ours, own = small.generate(*inputs)
                judged = spectral_loss(ours, samples)[1] | {"own": own}
            report(
                folder, "small", figures(step, progress, parts, {name: round(loss.item(), 4) for name, loss in judged.items()})
            )
            save(file, {"parts": small.parts, "steps": step, "trained_s": schedule.trained_s, **contest.state()})
            write(root, args.out, small)


if __name__ == "__main__":
    main()
