"""Before a GPU computes: old ones are refused in a sentence, wrong matrix products are found."""

import pytest
import torch

from pipeline.config import EngineConfig
from pipeline.engine.gpu_runner import rows_of_products
from pipeline.engine.scheduler import PREFILL_BUCKET
from pipeline.errors import ConfigError
from pipeline.model.gpu import prepare

CPU = torch.device("cpu")


SMALL = ((96, 256),)


def test_gpus_before_ampere_are_refused_in_a_sentence():
    for name, capability in (("Tesla T4", (7, 5)), ("Tesla V100", (7, 0))):
        with pytest.raises(ConfigError, match=rf"{name} has compute capability .* needs at least 8\.0 .* to cpu"):
            prepare.refuse_old(name, capability)
    for capability in ((8, 0), (8, 9), (9, 0), (12, 0)):
        prepare.refuse_old("newer", capability)


def test_right_products_pass():
    for dtype in (torch.float32, torch.bfloat16):
        prepare.refuse_wrong_products(CPU, rows=2, dtype=dtype, shapes=SMALL)


def test_a_wrong_product_is_found(monkeypatch):
    right = torch.nn.functional.linear

    def wrong(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Leaves out one of 128 inputs, in bfloat16 only."""
        if x.dtype == torch.bfloat16:
            x = x.clone()
            x[:, ::128] = 0
        return right(x, weight)

    monkeypatch.setattr(torch.nn.functional, "linear", wrong)
    prepare.refuse_wrong_products(CPU, rows=2, dtype=torch.float32, shapes=SMALL)
    with pytest.raises(ConfigError, match=r"matrix products are wrong on this GPU: \(2, 256\) .* in bfloat16 .*MIG"):
        prepare.refuse_wrong_products(CPU, rows=2, dtype=torch.bfloat16, shapes=SMALL)


def test_a_product_that_is_not_a_number_is_wrong(monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, weight: (x @ weight.T).fill_(float("nan")))
    with pytest.raises(ConfigError, match="nan"):
        prepare.refuse_wrong_products(CPU, rows=1, dtype=torch.float32, shapes=SMALL)


def test_prefills_and_windows_are_tried_too_and_cudnns_attention_is_off(monkeypatch):
    tried: list[tuple[int, object]] = []
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(prepare, "refuse_wrong_products", lambda device, *, rows, dtype, shapes: tried.append((rows, shapes)))
    allowed = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        rows = rows_of_products(EngineConfig(slots=8, prefill_rows=4, max_prompt=512))
        prepare.prepare_gpu(rows=rows, dtype=torch.bfloat16)
        assert tried == [(number, prepare.GPT_SHAPES) for number in (8, 4 * PREFILL_BUCKET, 2048)]
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(allowed)
