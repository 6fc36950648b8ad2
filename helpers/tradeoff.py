"""What does each way of saving memory cost? Peak bytes, step time and gradient error of one model, side by side."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import nn

from ._tradeoff_picture import Point, tradeoff_svg
from .display import Picture, Table, exact_bytes, round_bytes
from .memory import MemoryTracker

Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]
_PLAIN = "nothing"  # the name of the plain step among the policies
_AS_FAST = 1.1


class Measured(NamedTuple):
    """What one policy did to one step, forward and backward.

    Attributes:
        policy: its name.
        peak_bytes: the most that was live, over what was there before the step.
        step_time: as a ratio to the plain step, median over the rounds.
        gradient_error: the norm of the difference to the plain gradients, all parameters taken as one vector, over the
            norm of those; 0.0 only if every element is equal.
    """

    policy: str
    peak_bytes: int
    step_time: float
    gradient_error: float


class Tradeoff:
    """The rows of `compare_policies`: a picture in a notebook, a table in a terminal.

    Attributes:
        plain: the step with nothing done, a `Measured`.
        rows: a `Measured` for each policy, in order.
        budget: bytes that the peak should stay under, or None.
    """

    def __init__(self, plain: Measured, rows: list[Measured], budget: float | None):
        self.plain, self.rows, self.budget = plain, rows, budget

    def __getitem__(self, policy: str) -> Measured:
        for row in (self.plain, *self.rows):
            if row.policy == policy:
                return row
        raise KeyError(
            f"{policy!r} was not measured; there are {', '.join(r.policy for r in (self.plain, *self.rows))}"
        )

    @property
    def frontier(self) -> list[Measured]:
        """Those that no other beats in both peak and time, the fastest first."""
        best: list[Measured] = []
        for row in sorted((self.plain, *self.rows), key=lambda r: (r.step_time, r.peak_bytes)):
            if not best or row.peak_bytes < best[-1].peak_bytes:
                best.append(row)
        return best

    @property
    def within_budget(self) -> list[Measured]:
        """Those whose peak is within the budget, the fastest first; all of them without a budget."""
        rows = sorted((self.plain, *self.rows), key=lambda r: r.step_time)
        return [r for r in rows if self.budget is None or r.peak_bytes <= self.budget]

    def fastest(self, max_error: float = 0.0) -> Measured | None:
        """The fastest within the budget whose gradient is off by at most ``max_error``, or None.

        Times less than a tenth apart are taken for equal, as those of one step differ by as much from run to run. Of
        such the one with the exacter gradient is chosen, and then the one with the smaller peak.
        """
        fitting = [r for r in self.within_budget if r.gradient_error <= max_error]
        near = [r for r in fitting if not r.step_time > _AS_FAST * fitting[0].step_time]
        return min(near, key=lambda r: (r.gradient_error, r.peak_bytes), default=None)

    def under(self, budget: float | None) -> Tradeoff:
        """The same measurements with another budget, in bytes; nothing runs."""
        return Tradeoff(self.plain, self.rows, _checked_budget(budget))

    @property
    def title(self) -> str:
        """The finding, in one sentence, from bytes alone: times differ from run to run."""
        peak, least = self.plain.peak_bytes, min((r.peak_bytes for r in self.rows), default=self.plain.peak_bytes)
        if not self.within_budget:
            return (
                f"Nothing measured fits into {round_bytes(self.budget)}; the least is {round_bytes(min(peak, least))}"
            )
        if least >= peak:
            return f"Nothing lowers this peak of {round_bytes(peak)}"
        names = [r.policy for r in self.rows if r.peak_bytes == least]
        said = f"{names[0]} lowers" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} lower"
        return f"{said} the peak from {round_bytes(peak)} to {round_bytes(least)}"

    @property
    def table(self) -> Table:
        """Peaks to the byte, times as ratios, errors in percent."""
        rows = [
            [r.policy, r.peak_bytes, f"{r.step_time:.2f}", _error(r.gradient_error) or "none"]
            for r in (self.plain, *self.rows)
        ]
        return Table(["policy", "peak (B)", "step time", "gradient error"], rows, caption=self.title)

    def __repr__(self) -> str:
        return repr(self.table)

    @property
    def picture(self) -> Picture:
        """Time across, peak up, the frontier as a line, the budget as a rule."""
        points = [
            Point(r.policy, r.step_time, r.peak_bytes, _error(r.gradient_error), self._fits(r))
            for r in (self.plain, *self.rows)
        ]
        line = [(r.step_time, r.peak_bytes) for r in self.frontier]
        said = "; ".join(
            f"{r.policy}: {round_bytes(r.peak_bytes)} at {r.step_time:.2f} times the plain step"
            + (f", gradient error {_error(r.gradient_error)}" if r.gradient_error else "")
            for r in (self.plain, *self.rows)
        )
        budget = f" Budget: {exact_bytes(self.budget)}." if self.budget is not None else ""
        svg = tradeoff_svg(points, line, title=self.title, budget=self.budget)
        return Picture(svg, alt=f"{self.title}. {said}.{budget}", text=repr(self), data=self)

    def _fits(self, row: Measured) -> bool:
        return self.budget is None or row.peak_bytes <= self.budget

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.picture._repr_mimebundle_()


def compare_policies(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    policies: Mapping[str, Forward],
    *,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.mse_loss,
    rounds: int = 5,
    budget: float | None = None,
) -> Tradeoff:
    """Runs forward and backward under each policy and measures what it saves and what it costs.

    Each run starts from the same random state. Peaks are counted by `MemoryTracker` on one run; times are taken on
    others, in rounds of a plain step and one under each policy, so that the drift of a busy machine cancels, and on one
    thread of the CPU, as several wait for each other there. Each run finds parameters and buffers as they were;
    gradients, random state and number of threads are put back at the end: those of the model, the inputs and targets
    and, where it is a module, the loss. On a CPU the peak is that of near memory: see `offload_to_cpu`.

    Args:
        inputs, targets: tensors that are no part of a graph, as every step would run backward through it.
        policies: name -> a function of model and inputs that returns what ``model(inputs)`` would. ``"nothing"`` is the
            name of the plain step.
        loss: of what that function returned, and targets.
        rounds: how many steps are timed for each policy; 0 times nothing, and their ratios are NaN.
        budget: bytes that the peak should stay under.

    Raises:
        TypeError: for policies that are no mapping of names to functions, a model, inputs or targets that are none,
            rounds that are no whole number, or a budget that is no number.
        ValueError: where nothing wants a gradient, where inputs or targets are part of a graph, for a policy of the
            name "nothing", for fewer than 0 rounds, or a budget that is negative or not finite.
        Whatever a policy raises.

    Example:
        >>> model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(4096, 8)
        >>> forward = {"to disk": lambda model, x: WithSavedTensorHooks(model, offload_to_disk())(x)}
        >>> compare_policies(model, x, x, forward)["to disk"].gradient_error
        0.0

    Source: the idea of a frontier is Pareto's; peaks and times are this run's.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a model, an nn.Module, got {type(model).__name__}")
    for name, tensor in (("inputs", inputs), ("targets", targets)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is one tensor, got {type(tensor).__name__}: wrap a model that takes several")
        if tensor.requires_grad and not tensor.is_leaf:
            raise ValueError(f"{name} is part of a graph, through which each step would run: pass {name}.detach()")
    if not isinstance(policies, Mapping) or not all(isinstance(n, str) and callable(p) for n, p in policies.items()):
        raise TypeError(f"policies= maps a name to a function of (model, inputs); got {policies!r}")
    if _PLAIN in policies:
        raise ValueError(f"{_PLAIN!r} is the plain step, which is measured anyway: give the policy another name")
    if isinstance(rounds, bool) or not isinstance(rounds, int):
        raise TypeError(f"rounds= is how many steps are timed for each policy, a whole number; got {rounds!r}")
    if rounds < 0:
        raise ValueError(f"rounds= is how many steps are timed for each policy, 0 or more; got {rounds!r}")
    budget = _checked_budget(budget)
    modules = [model, loss] if isinstance(loss, nn.Module) else [model]
    wanted = [*model.parameters(), *([inputs] if inputs.requires_grad else [])]
    if not any(leaf.requires_grad for leaf in wanted):
        raise ValueError("nothing wants a gradient here: unfreeze a parameter, or let the inputs require a gradient")
    leaves = [*dict.fromkeys([*wanted, *(p for module in modules for p in module.parameters()), inputs, targets])]
    before = [leaf.grad for leaf in leaves]
    kept = [(t, t.detach().clone()) for module in modules for t in (*module.parameters(), *module.buffers())]
    state, threads = torch.get_rng_state(), torch.get_num_threads()

    def start_again() -> None:
        torch.set_rng_state(state)
        for leaf in leaves:
            leaf.grad = None
        with torch.no_grad():
            for tensor, value in kept:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)

    def step(forward: Forward) -> None:
        loss(forward(model, inputs), targets).backward()
        if inputs.device.type != "cpu":
            torch.accelerator.synchronize()

    def measured(forward: Forward) -> tuple[int, torch.Tensor]:
        start_again()
        step(forward)  # buffers that are made at the first call are not the policy's
        start_again()
        gc.collect()
        with MemoryTracker(model, inputs, targets, lines=False, groups=False) as tracker:
            step(forward)
        return tracker.peak_bytes - tracker.start_bytes, torch.cat([_flat(p) for p in wanted if p.requires_grad])

    def seconds(forward: Forward) -> float:
        start_again()
        start = time.perf_counter()
        step(forward)
        return time.perf_counter() - start

    def plain(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs)

    try:
        torch.set_num_threads(1)
        plain_peak, truth = measured(plain)
        peaks, errors = {}, {}
        for name, forward in policies.items():
            peaks[name], gradient = measured(forward)
            errors[name] = 0.0 if torch.equal(gradient, truth) else float((gradient - truth).norm() / truth.norm())
        ratios: dict[str, list[float]] = {name: [] for name in policies}
        for number in range(rounds):
            # What one leaves behind, in caches and on its way to a disk, is not to fall on the same one each time.
            order = [*policies] if number % 2 == 0 else [*reversed(policies)]
            base = seconds(plain)
            for name in order:
                ratios[name].append(seconds(policies[name]) / base)
        rows = [
            Measured(name, peaks[name], statistics.median(took) if took else float("nan"), errors[name])
            for name, took in ratios.items()
        ]
    finally:
        torch.set_num_threads(threads)
        start_again()
        for leaf, gradient in zip(leaves, before):
            leaf.grad = gradient
    return Tradeoff(Measured(_PLAIN, plain_peak, 1.0, 0.0), rows, budget)


def _checked_budget(budget: float | None) -> float | None:
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, (int, float))):
        raise TypeError(f"budget= is a number of bytes, such as 2 * 2**20, or None; got {budget!r}")
    if budget is not None and not 0 <= budget < float("inf"):
        raise ValueError(f"budget= is a finite number of bytes, 0 or more; got {budget!r}")
    return budget


def _flat(leaf: torch.Tensor) -> torch.Tensor:
    """The gradient as one row of float64; zeros where there is none."""
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.detach()
    gradient = gradient.to_dense() if gradient.is_sparse else gradient
    return (torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient).flatten().double()


def _error(relative: float) -> str:
    """A relative error in percent; nothing where there is none."""
    if relative == 0:
        return ""
    return f"{relative:.2%}" if relative >= 1e-4 else f"{relative:.0e}"
