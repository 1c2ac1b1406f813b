"""A pretended accelerator, for any machine: its tensors are CPU tensors that no other CPU tensor may meet.

register() adds a device, `pretend`, to the process, for good. An operation that mixes its tensors with a CPU
tensor of one or more dimensions is an error, as on a GPU (PyTorch copies indices: they are errors here).
What a GPU would make the CPU wait for is counted: copies in both directions, and masks, whose size the CPU
must know. Random numbers are the CPU's, so that a run ends as it does there, but for rounding.
"""

import sys
import threading
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
aten = torch.ops.aten
COPIES = (aten.copy_.default, aten._to_copy.default)
READS = (aten._local_scalar_dense.default, aten.equal.default)
READS += (aten.nonzero.default, aten.masked_select.default)  # of a size
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
LIBRARY = torch.library.Library("aten", "IMPL")


class Copy(NamedTuple):
    """From the CPU to the device, or back."""

    to_device: bool
    iteration: int | None  # of train(), None outside of its loop
    lines: list[int]  # of the script, from where it is asked for up to train()
    by_transformers: bool  # who asks


copies: list[Copy] = []


def count(to_device: bool) -> None:
    """Take down a copy, and where in train() it is: in the main thread, also while another goes backward."""
    frame, frames = sys._current_frames()[threading.main_thread().ident], []
    while frame:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        if frame.f_code.co_name == "train":
            lines = [line for file, line in frames if file == frame.f_code.co_filename]
            by_transformers = any("/transformers/" in file for file, _ in frames)
            copies.append(Copy(to_device, frame.f_locals.get("iteration"), lines, by_transformers))
            return
        frame = frame.f_back
    copies.append(Copy(to_device, None, [], False))


class DeviceTensor(Tensor):
    """Looks like a tensor of the device; host is the CPU tensor that it really is."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor):
        like = {"strides": host.stride(), "storage_offset": host.storage_offset(), "dtype": host.dtype}
        tensor = Tensor._make_wrapper_subclass(cls, host.shape, device=f"{NAME}:0", **like)
        tensor.host = host
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return compute(operation, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        self.host = other.host

    def tolist(self) -> list:
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: int) -> tuple:
        return self.host.__reduce_ex__(protocol)  # a checkpoint holds plain tensors

    def __repr__(self, **_) -> str:
        return f"{NAME}:{self.host!r}"


class Device(TorchDispatchMode):
    """Sees the operations that make a tensor of the device without being given one."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return compute(operation, args, kwargs or {})


def compute(operation, args: tuple, kwargs: dict):
    """The result of an operation, carried out on the CPU; it is a tensor of the device where it should be."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    ours = {id(x.host): x for x in tensors if isinstance(x, DeviceTensor)}
    on_device = bool(ours)
    if kwargs.get("device") is not None:
        on_device, kwargs = torch.device(kwargs["device"]).type == NAME, kwargs | {"device": "cpu"}
    if operation in COPIES:
        in_place = operation is aten.copy_.default
        on_device = isinstance(args[0], DeviceTensor) if in_place else on_device
        source = args[1] if in_place else args[0]
        if isinstance(source, DeviceTensor) != on_device and source.numel():
            count(to_device=on_device)
    elif ours:
        if any(x.dim() for x in tensors if not isinstance(x, DeviceTensor)):
            raise RuntimeError(f"{operation} mixes tensors of {NAME}:0 and of the CPU")
        indices = args[1] if operation in INDEXED else ()
        masks = sum(index is not None and index.dtype == torch.bool for index in indices)
        for _ in range(masks + (operation in READS)):
            count(to_device=False)
    args, kwargs = tree_map_only(DeviceTensor, lambda x: x.host, (args, kwargs))
    result = BY_HAND.get(operation, operation)(*args, **kwargs)
    if not on_device:
        return result
    return tree_map_only(Tensor, lambda x: ours[id(x)] if id(x) in ours else DeviceTensor(x), result)


def lstm_cell(input_gates: Tensor, hidden_gates: Tensor, cell: Tensor, *biases: Tensor) -> tuple:
    """One step of an LSTM -> hidden state, cell, and what goes backward; the CPU has no such operation."""
    gates = (input_gates + hidden_gates + sum(biases)).chunk(4, 1)
    i, f, g, o = (x.tanh() if n == 2 else x.sigmoid() for n, x in enumerate(gates))
    new = f * cell + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(grad_hidden, grad_new, cell: Tensor, new: Tensor, workspace: Tensor, _: bool) -> tuple:
    """The gradients of lstm_cell with respect to gates, cell and bias."""
    grad_hidden, grad_new = (torch.zeros_like(new) if x is None else x for x in (grad_hidden, grad_new))
    i, f, g, o = workspace.chunk(4, 1)
    grad = grad_new + grad_hidden * o * (1 - new.tanh() ** 2)
    parts = (grad * g * i * (1 - i), grad * cell * f * (1 - f), grad * i * (1 - g**2))
    gates = torch.cat([*parts, grad_hidden * new.tanh() * o * (1 - o)], 1)
    return gates, grad * f, gates.sum(0)


BY_HAND = {
    aten._thnn_fused_lstm_cell.default: lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward,
}


def register() -> None:
    """Add the device to this process."""
    _setup_privateuseone_for_python_backend(NAME)
    getattr(torch, NAME).get_amp_supported_dtype = lambda: [torch.bfloat16]
    empty, copy = aten.empty_strided.default, aten.copy_.default  # what torch.tensor() calls, past any mode
    LIBRARY.impl("empty_strided", lambda *sizes, **kwargs: compute(empty, sizes, kwargs), "PrivateUse1")
    LIBRARY.impl("_copy_from", lambda source, to, _=False: compute(copy, (to, source), {}), "PrivateUse1")
    Device().__enter__()
