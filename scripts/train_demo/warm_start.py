"""Warm start: reads the networks back from an exported checkpoint, so that training goes on where only that is left.

In:    a checkpoint of export.py, the first shards
Out:   the trained part of the networks' states; the coder
Owns:  nothing
Never: the optimisers' state, which starts anew

Tables become sums over digits again, plus a part of their own. Rows of tokens that the checkpoint has not learned stay as
they are. The DVAE's encoder was taught the coder's numbers: a linear map fitted to it is the coder, up to rounding.

    python -m scripts.train_demo.warm_start pipeline/assets/demo work     # its vocoder and DVAE, for export
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from pipeline.checkpoint.layout import DVAE_FILE, EMBED_FILE, GPT_FILE, MEL_DECODER_FILE, TOKENIZER_FILE, VOCOS_FILE
from scripts.train_demo.codes import CODES, Coder, neighbours
from scripts.train_demo.corpus import VOCABULARY, Example
from scripts.train_demo.dvae import Dvae
from scripts.train_demo.network import CodeTable, Speaking

RIDGE = 1e-3
SUFFIXES = ("parametrizations.weight.original0", "parametrizations.weight.original1")


def load_speaking(model: Speaking, folder: Path) -> list[str]:
    """Overwrites the model's weights; returns the tokens that the checkpoint does not know."""
    embed = _floats(folder / EMBED_FILE)
    body = {name: value for name, value in _floats(folder / GPT_FILE).items() if name != "embed_tokens.weight"}
    decoder = {f"mel_decoder.{name}": value for name, value in _floats(folder / MEL_DECODER_FILE).items()}
    decoder["mel_decoder.coef"] = decoder["mel_decoder.coef"].view(1, 100, 1)
    missing = model.load_state_dict(body | decoder, strict=False).missing_keys
    assert not [name for name in missing if name.startswith(("layers.", "norm.", "mel_decoder."))], missing
    for book, (embedding, head) in enumerate(zip(model.emb_code, model.head_code, strict=True)):
        lengths, directions = (embed[f"head_code.{book}.{suffix}"] for suffix in SUFFIXES)
        _fill(embedding, embed[f"emb_code.{book}.weight"])
        _fill(head, lengths * torch.nn.functional.normalize(directions, dim=1))
    known = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    unknown = []
    with torch.no_grad():
        for row, token in enumerate(VOCABULARY):
            index = known.token_to_id(token)
            if index is None:
                unknown.append(token)
            else:
                model.emb_text.weight[row] = embed["emb_text.weight"][index]
    return unknown


def coder_of(folder: Path, examples: list[Example]) -> tuple[Coder, Tensor]:
    """Returns the coder that the checkpoint's DVAE was taught, and each band's mean magnitude."""
    model = load_dvae(folder)
    inputs = torch.cat([neighbours(one.mel.float()) for one in examples]).double()
    with torch.no_grad():
        frames = [one.mel.float().view(1, -1, 100).transpose(1, 2) for one in examples]
        numbers = torch.cat([model.encode(one)[0] for one in frames]).double()
    mean = inputs.mean(0)
    centred = inputs - mean
    square = centred.T @ centred
    weight = torch.linalg.solve(
        square + RIDGE * square.diagonal().mean() * torch.eye(len(square)).double(), centred.T @ numbers
    ).T
    bias = numbers.mean(0) - weight @ mean
    return Coder(weight.float(), bias.float()), model.mel_decoder.get_buffer("coef").flatten().clone()


def load_dvae(folder: Path) -> Dvae:
    """Returns the checkpoint's DVAE."""
    found = _floats(folder / DVAE_FILE)
    model = Dvae(found["coef"].flatten())
    state = {}
    for name in model.state_dict():
        plain = name.removeprefix("mel_decoder.")
        if plain.startswith(("project_in.", "project_out.")):
            kind, group, rest = plain.split(".", 2)
            plain = f"vq_layer.quantizer.rvqs.{group}.{kind}.{rest}"
        state[name] = found[plain].view(model.state_dict()[name].shape)
    model.load_state_dict(state)
    return model.eval()


def vocos_state(folder: Path) -> dict[str, Tensor]:
    """Returns the checkpoint's vocoder."""
    found = _floats(folder / VOCOS_FILE)
    return {name: value for name, value in found.items() if name.startswith(("backbone.", "head.out."))}


def _fill(table: torch.nn.Module, rows: Tensor) -> None:
    assert isinstance(table, CodeTable)
    parts = table.get_buffer("parts")
    with torch.no_grad():
        table.shared.copy_(torch.linalg.lstsq(parts[:CODES], rows[:CODES], driver="gelsd").solution)
        table.own.copy_(rows - parts @ table.shared)


def _floats(path: Path) -> dict[str, Tensor]:
    return {name: value.float() for name, value in load_file(path).items()}


def main() -> None:
    """Writes the checkpoint's vocoder and DVAE to where export reads them."""
    parser = argparse.ArgumentParser(description="Take the vocoder and the DVAE from an exported checkpoint.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("work", type=Path)
    args = parser.parse_args()
    torch.save({"model": vocos_state(args.checkpoint)}, args.work / "vocos.pt")
    torch.save({"model": load_dvae(args.checkpoint).state_dict()}, args.work / "dvae.pt")


if __name__ == "__main__":
    main()
