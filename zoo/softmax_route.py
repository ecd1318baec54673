"""Reads attention logits where a module's own code calls softmax, for models without the attention interface.

Only stock eager attention is run, so what softmax receives is what the model really uses: position
biases (ALiBi), masks and scaling are in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

HIDDEN_BELOW = -5000.0
"""Logits below this are masks: the smallest that models add is -10,000 (openai-gpt)."""

_SOFTMAX = (torch.softmax, Tensor.softmax, nn.functional.softmax)


class _Watch(TorchFunctionMode):
    """Hands the input of each softmax over the last dimension to ``observe`` and lets it run."""

    def __init__(self, observe: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.observe = observe

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _SOFTMAX:
            self.observe(args[0])
        return func(*args, **(kwargs or {}))


def watch(module: nn.Module, observe: Callable[[nn.Module, Tensor], None]) -> None:
    """From now on call ``observe(module, logits)`` whenever the module's forward calls softmax.

    The watch covers one module's forward and nothing around it, so forward passes that take turns do
    not see each other's softmax.
    """
    if isinstance(module.forward, _Watched):
        return
    module.forward = _Watched(module, module.forward, observe)


class _Watched:
    """A module's forward under watch."""

    def __init__(
        self, module: nn.Module, forward: Callable[..., Any], observe: Callable[[nn.Module, Tensor], None]
    ) -> None:
        self.module, self.forward, self.observe = module, forward, observe

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _Watch(lambda logits: self.observe(self.module, logits)):
            return self.forward(*args, **kwargs)
