"""How does a long measurement leave no trace? Every generator and mode is set for it and put back after it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def undisturbed() -> Iterator[None]:
    """Seeds every generator and sets every mode that could change a result, silently, and puts all back."""
    states = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
    dtype, fill = torch.get_default_dtype(), torch.utils.deterministic.fill_uninitialized_memory
    threads = torch.get_num_threads()
    strict, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # The innermost pair of hooks is the only one that runs: the reader's own never hears of the atlas.
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t))
        stack.enter_context(_disable_current_modes())
        if torch.get_default_device().type != "cpu":  # a function mode, which would double the time of the run
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        try:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
            torch.utils.deterministic.fill_uninitialized_memory = True
            torch.set_num_threads(1)  # the tensors are tiny: more threads would wait for one another
            yield
        finally:
            torch.random.set_rng_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(strict, warn_only=warn_only)
            torch.utils.deterministic.fill_uninitialized_memory = fill


def seed() -> None:
    """Starts every generator anew, so that an entry's samples do not depend on the entries before it."""
    torch.default_generator.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
