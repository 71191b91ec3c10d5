"""Graph: runs an ONNX graph of the teacher's kind with torch, on a GPU many times faster than real time.

In:    an ONNX file whose weights may be in 8 bits, its inputs
Out:   the values that are asked for
Owns:  what each operator means
Never: which graph it is

Weights in 8 bits become float32 once, and values are not quantised on the way: the result is a little cleaner.
Integers stay on the CPU, where shapes are computed; floats are on the device.
Source of the operators: https://onnx.ai/onnx/operators/ and docs/ContribOperators.md of microsoft/onnxruntime.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attributes = Mapping[str, Any]
Operator = Callable[[Attributes, Sequence[Any]], Any]
Written = tuple[str, dict[str, Any], list[str], list[str]]
"""a node as the file has it: its kind, attributes, inputs, outputs"""
_DTYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool}


@dataclass(frozen=True, slots=True)
class Node:
    """An operator with the names of its inputs and outputs."""

    run: Operator
    attributes: Attributes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    unused: tuple[str, ...]
    """values that no later node needs"""


class Graph:
    """A graph on a device."""

    def __init__(self, path: Path, outputs: Sequence[str], device: str) -> None:
        """
        Args:
            outputs: names of the values to return.

        Raises:
            KeyError: the graph has an operator that is not known here.
        """
        onnx = import_module("onnx")
        graph = onnx.load(str(path)).graph
        self._device, self._outputs = device, tuple(outputs)
        constants = {constant.name: onnx.numpy_helper.to_array(constant) for constant in graph.initializer}
        nodes = [
            (
                node.op_type,
                {attribute.name: _attribute(onnx, attribute) for attribute in node.attribute},
                list(node.input),
                list(node.output),
            )
            for node in graph.node
        ]
        self._constants = {name: self._placed(torch.from_numpy(np.array(array))) for name, array in constants.items()}
        self._nodes = self._planned(nodes)

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Returns the wanted values for the graph's inputs, on the device."""
        values: dict[str, Any] = dict(self._constants)
        values |= {name: self._placed(value) for name, value in inputs.items()}
        values[""] = None
        for node in self._nodes:
            outputs = node.run(node.attributes, [values[name] for name in node.inputs])
            if len(node.outputs) == 1:
                values[node.outputs[0]] = outputs
            else:
                values |= dict(zip(node.outputs, outputs, strict=False))
            for name in node.unused:
                del values[name]
        return [values[name] for name in self._outputs]

    def _placed(self, value: Tensor) -> Tensor:
        """Returns a value where its kind is kept; 8 bits stay where they are until they have their scale."""
        return value.to(self._device) if value.is_floating_point() else value

    def _planned(self, nodes: list[Written]) -> list[Node]:
        """Returns the nodes that the wanted values need, without those that quantise."""
        plain = self._without_quantising(nodes)
        needed, planned = set(self._outputs), []
        for kind, attributes, inputs, outputs in reversed(plain):
            if needed & set(outputs):
                last = [name for name in dict.fromkeys(inputs) if name and name not in needed and name not in self._constants]
                needed |= set(inputs)
                planned.append(Node(OPERATORS[kind], attributes, tuple(inputs), tuple(outputs), tuple(last)))
        return planned[::-1]

    def _without_quantising(self, nodes: list[Written]) -> list[Written]:
        """Replaces each product in 8 bits, with its scales and its bias, by the same one in floats."""
        maker = {name: node for node in nodes for name in node[3]}
        users: dict[str, list[Written]] = {}
        for node in nodes:
            for name in node[2]:
                users.setdefault(name, []).append(node)
        plain: dict[int, Written] = {}
        for node in nodes:
            kind, attributes, inputs, outputs = node
            if kind == "DynamicQuantizeLSTM":
                plain[id(node)] = self._plain_lstm(node)
            if kind not in ("ConvInteger", "MatMulInteger"):
                continue
            source, bias = maker[inputs[0]], ""
            (following,) = users[outputs[0]]
            if following[0] == "Add":  # a bias in units of the product
                bias = following[2][1 - following[2].index(outputs[0])]
                while bias in maker:
                    bias = maker[bias][2][0]
                (following,) = users[following[3][0]]
            (scaling,) = users[following[3][0]]
            scales = maker[next(name for name in scaling[2] if name != following[3][0])]
            scale = self._constants[next(name for name in scales[2] if name in self._constants)]
            weight = self._scaled(inputs[1], inputs[3], scale, along=0 if kind == "ConvInteger" else -1)
            name = f"{inputs[1]} in floats"
            self._constants[name] = weight
            if bias:
                self._constants[bias] = self._constants[bias].flatten()
            plain[id(scaling)] = (
                kind.removesuffix("Integer"),
                attributes,
                [source[2][0], name, bias] if kind == "ConvInteger" else [source[2][0], name],
                scaling[3],
            )
        return [plain.get(id(node), node) for node in nodes]

    def _plain_lstm(self, node: Written) -> Written:
        """Returns an LSTM as a module of torch, whose gates stand in another order."""
        _, attributes, inputs, outputs = node
        wide, inner, bias = inputs[1], inputs[2], self._constants[inputs[3]]
        both = [
            self._scaled(name, inputs[zero], self._constants[inputs[scale]], along=None).transpose(1, 2)
            for name, scale, zero in ((wide, 8, 9), (inner, 10, 11))
        ]
        module = nn.LSTM(both[0].shape[2], attributes["hidden_size"], bidirectional=True, device=self._device)
        with torch.no_grad():
            for direction, suffix in enumerate(("", "_reverse")):
                for name, value in (
                    ("weight_ih", both[0][direction]),
                    ("weight_hh", both[1][direction]),
                    ("bias_ih", bias[direction].chunk(2)[0]),
                    ("bias_hh", bias[direction].chunk(2)[1]),
                ):
                    getattr(module, f"{name}_l0{suffix}").copy_(_in_order(value))
        module.flatten_parameters()
        return ("LSTM", {"module": module}, [inputs[0], inputs[5], inputs[6]], outputs)

    def _scaled(self, name: str, zero: str, scale: Tensor, *, along: int | None) -> Tensor:
        """Returns weights in 8 bits as floats; a scale for each row stands along an axis, of an LSTM for each direction."""
        whole = self._constants[name].to(self._device).float()
        offset = self._constants[zero].to(self._device).float()
        shape = [1] * whole.dim()
        if along is None:
            shape[0] = -1
            if scale.dim() == 2:
                shape[2] = scale.shape[1]
        else:
            shape[along] = -1
        return (whole - offset.reshape(shape if offset.numel() > 1 else [1] * whole.dim())) * scale.reshape(
            shape if scale.numel() > 1 else [1] * whole.dim()
        )


def _in_order(gates: Tensor) -> Tensor:
    """Puts input, output, forget, cell, as ONNX has them, into torch's order: input, forget, cell, output."""
    first, out, forget, cell = gates.chunk(4)
    return torch.cat([first, forget, cell, out])


def _attribute(onnx: Any, attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return torch.from_numpy(np.array(onnx.numpy_helper.to_array(value))) if hasattr(value, "raw_data") else value


def _ints(value: Tensor) -> list[int]:
    return [int(number) for number in value.flatten().tolist()]


def _together(x: Any, y: Any) -> tuple[Any, Any]:
    """Returns two operands on one device: a single number may stay where it is."""
    if x.device != y.device:
        if x.dim() and not x.is_cuda:
            x = x.to(y.device)
        if y.dim() and not y.is_cuda:
            y = y.to(x.device)
    return x, y


def _binary(operation: Callable[[Any, Any], Any]) -> Operator:
    return lambda _, inputs: operation(*_together(*inputs))


def _unary(operation: Callable[[Any], Any]) -> Operator:
    return lambda _, inputs: operation(inputs[0])


def _divide(x: Tensor, y: Tensor) -> Tensor:
    """Divides; 0 / 0 is 0, as it is where values are rounded to 8 bits: the phase of silence."""
    return (x / y).nan_to_num(0.0, math.inf, -math.inf) if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _cast(attributes: Attributes, inputs: Sequence[Any]) -> Tensor:
    x: Tensor = inputs[0]
    return x.to(_DTYPES[attributes["to"]])


def _gather(attributes: Attributes, inputs: Sequence[Any]) -> Tensor:
    x, index = inputs
    axis = attributes.get("axis", 0)
    flat = x.index_select(axis, index.flatten().to(x.device) % x.shape[axis])
    return flat.reshape([*x.shape[:axis], *index.shape, *x.shape[axis:][1:]])  # type: ignore[no-any-return]


def _reshape(_: Attributes, inputs: Sequence[Any]) -> Tensor:
    x, shape = inputs
    return x.reshape([x.shape[at] if size == 0 else size for at, size in enumerate(_ints(shape))])  # type: ignore[no-any-return]


def _slice(_: Attributes, inputs: Sequence[Any]) -> Tensor:
    x, starts, ends, axes, steps = (*inputs, None, None)[:5]
    chosen = _ints(axes) if axes is not None else list(range(len(starts)))
    for begin, end, axis, step in zip(
        _ints(starts), _ints(ends), chosen, _ints(steps) if steps is not None else [1] * len(chosen), strict=True
    ):
        if step < 0:
            x = x.flip(axis)
            continue
        index = [slice(None)] * x.dim()
        index[axis] = slice(begin, end, step)
        x = x[tuple(index)]
    return x  # type: ignore[no-any-return]


def _unsqueeze(_: Attributes, inputs: Sequence[Any]) -> Tensor:
    x, axes = inputs
    rank = x.dim() + axes.numel()
    for axis in sorted(axis % rank for axis in _ints(axes)):
        x = x.unsqueeze(axis)
    return x  # type: ignore[no-any-return]


def _squeeze(_: Attributes, inputs: Sequence[Any]) -> Tensor:
    return inputs[0].squeeze(tuple(_ints(inputs[1])) if len(inputs) > 1 else None)  # type: ignore[no-any-return]


def _reduce(operation: Callable[..., Any]) -> Operator:
    return lambda attributes, inputs: operation(inputs[0], dim=_ints(inputs[1]), keepdim=bool(attributes.get("keepdims", 1)))


def _conv(attributes: Attributes, inputs: Sequence[Any]) -> Tensor:
    x, weight, bias = (*inputs, None)[:3]
    pads = attributes["pads"]
    return F.conv1d(x, weight, bias, attributes["strides"][0], pads[0], attributes["dilations"][0], attributes["group"])


def _conv_transpose(attributes: Attributes, inputs: Sequence[Any]) -> Tensor:
    x, weight, bias = (*inputs, None)[:3]
    more = attributes.get("output_padding", [0])[0]
    return F.conv_transpose1d(
        x, weight, bias, attributes["strides"][0], attributes["pads"][0], more, attributes["group"], attributes["dilations"][0]
    )


def _resize(attributes: Attributes, inputs: Sequence[Any]) -> Tensor:
    x, scale = inputs[0], float(inputs[2].flatten()[-1])
    is_nearest = attributes["mode"] == "nearest"
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    size = int(flat.shape[-1] * scale)
    if is_nearest:
        index = (torch.arange(size, device=x.device) / scale).floor().long().clamp(max=flat.shape[-1] - 1)
        values = flat[..., index]
    else:
        values = F.interpolate(flat, scale_factor=scale, mode="linear", align_corners=False, recompute_scale_factor=False)
    return values.reshape(*x.shape[:-1], size)  # type: ignore[no-any-return]


def _stft(_: Attributes, inputs: Sequence[Any]) -> Tensor:
    x, step, window, length = inputs
    frames: Tensor = x.reshape(x.shape[0], -1).unfold(1, int(length), int(step)) * window
    return torch.view_as_real(torch.fft.rfft(frames))


def _scatter(_: Attributes, inputs: Sequence[Any]) -> Tensor:
    x, index, updates = inputs
    output = x.clone()
    output[tuple(index.to(x.device).unbind(-1))] = updates.to(x.device)
    return output  # type: ignore[no-any-return]


def _layer_norm(attributes: Attributes, inputs: Sequence[Any]) -> Tensor:
    return F.layer_norm(inputs[0], inputs[1].shape, inputs[1], inputs[2], attributes["epsilon"])


def _skip_layer_norm(attributes: Attributes, inputs: Sequence[Any]) -> Tensor:
    x, skipped, scale, bias = inputs
    return F.layer_norm(x + skipped, scale.shape, scale, bias, attributes["epsilon"])


def _lstm(attributes: Attributes, inputs: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    x, hidden, cell = inputs
    out, (hidden, cell) = attributes["module"](x, (hidden.to(x.device), cell.to(x.device)))
    return out.unflatten(2, (2, -1)).transpose(1, 2), hidden, cell


def _broadcast(shape: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    return torch.broadcast_shapes(shape, other)  # type: ignore[no-any-return, no-untyped-call]


def _constant(attributes: Attributes, inputs: Sequence[Any]) -> Tensor:
    value = attributes["value"]
    return torch.full(_ints(inputs[0]), value.item(), dtype=value.dtype)


OPERATORS: dict[str, Operator] = {
    "Add": _binary(torch.add),
    "And": _binary(torch.logical_and),
    "Atan": _unary(torch.atan),
    "Cast": _cast,
    "Clip": lambda _, inputs: inputs[0].clamp(
        *(None if bound is None else bound.item() for bound in (*inputs[1:], None, None)[:2])
    ),
    "Concat": lambda attributes, inputs: torch.cat(_on_one_device(inputs), attributes["axis"]),
    "ConstantOfShape": _constant,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Cos": _unary(torch.cos),
    "CumSum": lambda _, inputs: inputs[0].cumsum(int(inputs[1])),
    "DequantizeLinear": lambda _, inputs: (inputs[0].float() - inputs[2].float()).to(inputs[1].device) * inputs[1],
    "Div": _binary(_divide),
    "Equal": _binary(torch.eq),
    "Exp": _unary(torch.exp),
    "Expand": lambda _, inputs: inputs[0].expand(_broadcast(inputs[0].shape, _ints(inputs[1]))),
    "FastGelu": lambda _, inputs: F.gelu(inputs[0] + inputs[1] if len(inputs) > 1 else inputs[0], approximate="tanh"),
    "Floor": _unary(torch.floor),
    "FusedMatMul": lambda attributes, inputs: (
        torch.matmul(inputs[0].transpose(-1, -2) if attributes["transA"] else inputs[0], inputs[1]) * attributes["alpha"]
    ),
    "Gather": _gather,
    "Greater": _binary(torch.gt),
    "GreaterOrEqual": _binary(torch.ge),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda attributes, inputs: F.leaky_relu(inputs[0], attributes["alpha"]),
    "Less": _binary(torch.lt),
    "LSTM": _lstm,
    "MatMul": _binary(torch.matmul),
    "Mul": _binary(torch.mul),
    "NonZero": lambda _, inputs: inputs[0].nonzero().T,
    "Pad": lambda attributes, inputs: F.pad(inputs[0], _pads(inputs[1]), mode=attributes["mode"]),
    "Pow": _binary(torch.pow),
    "Range": lambda _, inputs: torch.arange(*(bound.item() for bound in inputs)),
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "Reshape": _reshape,
    "Resize": _resize,
    "Round": _unary(torch.round),
    "STFT": _stft,
    "ScatterND": _scatter,
    "Shape": lambda _, inputs: torch.tensor(inputs[0].shape),
    "Sigmoid": _unary(torch.sigmoid),
    "Sin": _unary(torch.sin),
    "SkipLayerNormalization": _skip_layer_norm,
    "Slice": _slice,
    "Softmax": lambda attributes, inputs: inputs[0].softmax(attributes["axis"]),
    "Split": lambda attributes, inputs: inputs[0].split(_ints(inputs[1]), attributes["axis"]),
    "Sqrt": _unary(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(torch.sub),
    "Tanh": _unary(torch.tanh),
    "Transpose": lambda attributes, inputs: inputs[0].permute(attributes["perm"]),
    "Unsqueeze": _unsqueeze,
    "Where": lambda _, inputs: torch.where(*_on_one_device(inputs)),
}


def _on_one_device(inputs: Sequence[Any]) -> list[Any]:
    device = next((tensor.device for tensor in inputs if tensor.is_cuda), torch.device("cpu"))
    return [tensor.to(device) for tensor in inputs]


def _pads(pads: Tensor) -> list[int]:
    """Returns torch's padding, last axis first, without the leading axes that have none."""
    before, after = pads.chunk(2)
    pairs = list(zip(_ints(before), _ints(after), strict=True))[::-1]
    while pairs and pairs[-1] == (0, 0):
        pairs.pop()
    return [size for pair in pairs for size in pair]
