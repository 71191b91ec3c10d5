"""Adversarial: trains a generator of samples beside judges that tell its samples from originals.

In:    a generator, batches of its inputs and of original samples
Out:   steps of training, on a GPU captured as one graph
Owns:  the losses, the judges' optimisers, the capture
Never: data

A loss of spectra alone leaves a buzz: it has no notion of a phase that sounds natural.
Source of the losses: HiFi-GAN, https://arxiv.org/abs/2010.05646, and Vocos, https://arxiv.org/abs/2306.00814.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_demo.features import log_mel
from scripts.train_demo.training import autocast
from scripts.train_demo.vocoder import Critic

MEL_WEIGHT, SPECTRA_WEIGHT, MATCHING_WEIGHT = 30.0, 6.0, 2.0
SPECTRA = (256, 512, 1024, 2048)
RATE, CRITIC_RATE = 6e-4, 3e-4
WARM_UPS = 3  # steps before a capture

Generate = Callable[..., tuple[Tensor, Tensor]]
"""maps the inputs to samples (B, n), and to a loss of the generator's own"""


def spectral_loss(ours: Tensor, originals: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss of samples (B, n) against samples (B, n), and its parts by name."""
    mel = (log_mel(ours) - log_mel(originals)).abs().mean()
    spectra = torch.zeros((), device=ours.device)
    for size in SPECTRA:
        copied, expected = (
            torch.stft(x, size, size // 4, window=_window(size, str(x.device)), return_complex=True).abs().clamp(min=1e-5)
            for x in (ours, originals)
        )
        distance = (copied.log() - expected.log()).abs().mean() + (copied - expected).norm() / expected.norm()
        spectra = spectra + distance / len(SPECTRA)
    return MEL_WEIGHT * mel + SPECTRA_WEIGHT * spectra, {"mel": mel.detach(), "spectra": spectra.detach()}


@cache
def _window(size: int, device: str) -> Tensor:
    return torch.hann_window(size, device=device)


def critic_loss(critic: Critic, ours: Tensor, originals: Tensor) -> Tensor:
    """Returns the hinge loss of judges that tell originals from copies."""
    both = critic(torch.cat([originals, ours.detach()]))
    parts = []
    for score, _ in both:
        true, false = score.float().chunk(2)
        parts.append(F.relu(1 - true).mean() + F.relu(1 + false).mean())
    return torch.stack(parts).sum()


def persuasion_loss(critic: Critic, ours: Tensor, originals: Tensor) -> Tensor:
    """Returns how far copies are from passing for originals, in scores and in features."""
    parts = []
    for score, features in critic(torch.cat([originals, ours])):
        parts.append(F.relu(1 - score.float().chunk(2)[1]).mean())
        for layer in features:
            true, false = layer.chunk(2)
            parts.append(MATCHING_WEIGHT * (true.detach() - false).abs().float().mean())
    return torch.stack(parts).sum()


class Contest:
    """A generator's parameters and its judges, and how both learn."""

    def __init__(self, parameters: Iterable[nn.Parameter], critic: Critic, generate: Generate, device: str) -> None:
        self._parameters, self._critic, self._generate = list(parameters), critic, generate
        self._device, self._is_cuda = device, device.startswith("cuda")
        self._judged = list(critic.parameters())
        more: dict[str, Any] = {"betas": (0.8, 0.99), "fused": True, "capturable": self._is_cuda, "weight_decay": 0.01}
        self._optimisers = [
            torch.optim.AdamW(part, torch.tensor(rate, device=device) if self._is_cuda else rate, **more)
            for part, rate in ((self._parameters, RATE), (self._judged, CRITIC_RATE))
        ]
        self._graphs: dict[bool, tuple[Any, tuple[Tensor, ...], dict[str, Tensor]]] = {}

    def learn(self, inputs: tuple[Tensor, ...], *, share: float, is_alone: bool) -> dict[str, Tensor]:
        """Makes one step; returns the losses by name.

        Args:
            inputs: the original samples first, then what the generator takes; their shapes never change.
            share: of the highest rates.
            is_alone: the generator learns from spectra alone.
        """
        for optimiser, rate in zip(self._optimisers, (RATE, CRITIC_RATE), strict=True):
            for group in optimiser.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate * share)
                else:
                    group["lr"] = rate * share
        if not self._is_cuda:
            return self._step(inputs, is_alone)
        if is_alone not in self._graphs:
            self._graphs[is_alone] = self._captured(inputs, is_alone)
        graph, places, losses = self._graphs[is_alone]
        for place, value in zip(places, inputs, strict=True):
            place.copy_(value)
        graph.replay()
        return losses

    def _captured(self, inputs: tuple[Tensor, ...], is_alone: bool) -> tuple[Any, tuple[Tensor, ...], dict[str, Tensor]]:
        places = tuple(value.clone() for value in inputs)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._step(places, is_alone)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            losses = self._step(places, is_alone)
        return graph, places, losses

    def _step(self, inputs: tuple[Tensor, ...], is_alone: bool) -> dict[str, Tensor]:
        originals, *arguments = inputs
        ours, own = self._generate(*arguments)
        total, parts = spectral_loss(ours, originals)
        total = total + own
        if not is_alone:
            for parameter in self._judged:
                parameter.requires_grad_(False)
            with autocast(self._device):
                persuasion = persuasion_loss(self._critic, ours, originals)
            total, parts["persuasion"] = total + persuasion, persuasion.detach()
            for parameter in self._judged:
                parameter.requires_grad_(True)
        self._descend(0, self._parameters, total)
        if not is_alone:
            with autocast(self._device):
                judging = critic_loss(self._critic, ours, originals)
            self._descend(1, self._judged, judging)
            parts["critic"] = judging.detach()
        return parts | {"own": own.detach()}

    def _descend(self, place: int, parameters: list[nn.Parameter], total: Tensor) -> None:
        optimiser = self._optimisers[place]
        optimiser.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 10.0 if place == 0 else 50.0, foreach=True)
        optimiser.step()

    def state(self) -> dict[str, Any]:
        """Returns the judges' and the optimisers' state."""
        return {"critic": self._critic.state_dict(), "optimisers": [optimiser.state_dict() for optimiser in self._optimisers]}
