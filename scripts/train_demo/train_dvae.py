"""Train DVAE: trains the DVAE, from recordings to the coder's codes, and from codes to mel frames.

In:    the corpus's shards, work/coder.pt
Out:   work/dvae.pt (resumes from it), work/dvae.jsonl
Owns:  the losses
Never: the checkpoint's layout

    python -m scripts.train_demo.train_dvae work --steps 3000

The encoder learns the eight numbers that are rounded to codes, so a recording gets the codes that the GPT was taught.
`use_decoder: false` uses the decoder.
"""

import random

import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.train_demo.batches import open_coder
from scripts.train_demo.codes import Coder, quantise
from scripts.train_demo.corpus import HELD_OUT, load_shard
from scripts.train_demo.dvae import Dvae
from scripts.train_demo.loop import options, train

CROP_STEPS, ROWS = 64, 12
RATE = 2e-3
SHARDS = 4  # enough for networks this small


def loss(model: Dvae, coder: Coder, mel: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Returns the loss of mel frames (B, T, 200) and its parts by name."""
    numbers = torch.stack([coder.numbers(one) for one in mel])
    frames = mel.view(len(mel), -1, 100).transpose(1, 2)
    found = model.encode(frames)
    inner = slice(2, -2)  # the ends of a crop are not the ends of an utterance
    encoding = F.smooth_l1_loss(found[:, inner], numbers[:, inner])
    codes = quantise(numbers)
    decoding = (model.decode(codes) - frames).abs().mean()
    same = (quantise(found)[:, inner, ::2] == codes[:, inner, ::2]).float().mean()
    return encoding + decoding, {"numbers": encoding.item(), "mel": decoding.item(), "same codes": same.item()}


def main() -> None:
    """Trains for a number of steps."""
    args = options("Train the DVAE.", steps=3000)
    coder, coef = open_coder(args.work)
    numbered = {int(path.stem): path for path in sorted((args.work / "corpus").glob("*.pt"))}
    mels = {number: [one.mel for one in load_shard(path)] for number, path in list(numbered.items())[: SHARDS + 1]}
    learning = [mel for number, kept in mels.items() if number != HELD_OUT for mel in kept]
    model = Dvae(coef)

    def crops(source: list[Tensor], draw: random.Random) -> Tensor:
        long = [mel for mel in draw.choices(source, k=4 * ROWS) if len(mel) >= CROP_STEPS][:ROWS]
        begins = [draw.randint(0, len(mel) - CROP_STEPS) for mel in long]
        return torch.stack([mel[begin : begin + CROP_STEPS].float() for mel, begin in zip(long, begins, strict=True)])

    train(
        model,
        args.work / "dvae.pt",
        steps=args.steps,
        rate=RATE,
        learn=lambda step: loss(model, coder, crops(learning, random.Random(f"{args.seed}/{step}"))),
        judge=lambda: loss(model, coder, crops(mels[HELD_OUT], random.Random(0))),
    )


if __name__ == "__main__":
    main()
