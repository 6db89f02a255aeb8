"""Compiles layers by torch.compile, each alone, so that its bits are the same wherever a plan cuts.

What is compiled may depend on nothing but the layer and the shapes: no sizes that are left open after a second shape,
no number of threads, always the gradients of all inputs, and inputs as they come over a wire.

Code is kept on disk, in the folder of torch's own cache (TORCHINDUCTOR_CACHE_DIR), for all workers of a host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planaria.job.errors import UserError
from planaria.job.sections.cluster import Device
from planaria.job.settings import Job
from planaria.model.model import Tensors

_MOST_GRAPHS = 1 << 20
"""Most compiled graphs of one function: each layer may have graphs of its own."""


def check_compiler(job: Job) -> None:
    """Refuses a job whose layers cannot be compiled here.

    Raises:
        UserError: there is no compiler.
    """
    if not job.train.compile or job.cluster.device is Device.EMULATED:
        return
    if job.cluster.device is Device.CUDA:
        from torch.utils._triton import has_triton

        if not has_triton():
            raise UserError(
                "train.compile = true needs triton on CUDA devices, and it is not there. "
                "Install it (pip install triton), or set compile = false."
            )
        return
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        tried = ", ".join(str(name) for name in config.cpp.cxx if name)
        raise UserError(
            f"train.compile = true needs a C++ compiler, and none was found ({tried}). "
            "Install g++, name one in the variable CXX, or set compile = false."
        ) from None


def compiled(module: nn.Module) -> Callable[..., Any]:
    """Returns a function that does what the module's forward does, compiled at its first call for its inputs' shapes.

    It is for training mode, with gradients.
    """
    _settle()
    called: Callable[..., Any] = torch.compile(module, dynamic=False)
    return called


def as_over_a_wire(tensors: Tensors) -> Tensors:
    """Returns what a layer is given, laid out alike whether or not it has come in a message."""
    return tuple(tensor.contiguous() for tensor in tensors)


def _settle() -> None:
    """Sets what may not differ between processes."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = _MOST_GRAPHS
    functorch.donated_buffer = False  # a graph may be run backwards twice
    inductor.compile_threads = 1  # no processes of its own, which would outlive a killed worker
    inductor.cpp.threads = 1
