"""What the exercises of chapter 09 (offload to CPU) ask for. Stubs and solutions stand in the chapter itself."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from helpers._checks import Case, Exercise
from helpers._properties import Property, Trial, describe, message_of, returns_two_functions

_drawing_nothing = torch.random.fork_rng(devices=[])  # layers draw numbers, and the reader's must stay the next ones

# ------------------------------------------------------------------------------------------------ wrap one layer


@_drawing_nothing
def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 32), nn.GELU(), nn.Linear(32, 8)).float()


def _one_of(position: int) -> Callable[[], tuple]:
    def make() -> tuple:
        from helpers.hooks import offload_to_cpu

        hooks = offload_to_cpu(min_bytes=0)
        return _layers(), position, lambda: hooks

    return make


def _rows() -> torch.Tensor:
    return (torch.arange(128 * 64, dtype=torch.float32) / 1000).sin().view(128, 64)


def _is_module(t: Trial) -> str | None:
    return None if isinstance(t.result, nn.Module) else f"it returned {describe(t.result)}"


def _same_values(t: Trial) -> str | None:
    wanted = t.before["model"](_rows())
    return None if torch.equal(t.result(_rows()), wanted) else "its outputs are others"


def _same_parameters(t: Trial) -> str | None:
    theirs, ours = set(map(id, t.result.parameters())), set(map(id, t.args["model"].parameters()))
    return None if theirs == ours else f"of {len(ours)} parameters it has {len(theirs & ours)}"


def _untouched(t: Trial) -> str | None:
    was, now = [[type(m) for m in model] for model in (t.before["model"], t.args["model"])]
    if was != now:
        return f"layer {next(i for i, (a, b) in enumerate(zip(was, now)) if a is not b)} of `model` is another now"
    hooks = t.args["hooks"]()
    moved = hooks.packed
    t.args["model"](_rows()).sum().backward()
    t.args["model"].zero_grad(set_to_none=True)
    return None if hooks.packed == moved else "`model` itself now runs under hooks"


def _moves_one(t: Trial) -> str | None:
    hooks, position = t.args["hooks"](), t.args["position"]
    before = hooks.bytes_written
    t.result(_rows()).sum().backward()
    found, wanted = hooks.bytes_written - before, _moved_alone(t.before["model"], _rows(), str(position))
    return None if found == wanted else f"{found:,} B were moved, layer {position} alone saves {wanted:,} B"


def _moved_alone(model: nn.Module, x: torch.Tensor, name: str) -> int:
    from helpers.hooks import offload_to_cpu

    hooks = offload_to_cpu(min_bytes=0, policy=model.get_submodule(name))
    with hooks:
        model(x)
    return hooks.bytes_written


WRAP_LAYER = Exercise(
    name="wrap_layer",
    task="return a model with the same parameters whose layer at `position` alone runs under hooks",
    parameters=("model", "position", "hooks"),
    cases=(
        Case("the first of five layers", _one_of(0)),
        Case("a layer in the middle", _one_of(2)),
        Case("an activation", _one_of(1)),
    ),
    expect=lambda model, position, hooks: {},
    properties=(
        Property("return a module", _is_module, "Is the `return` missing?", decisive=True),
        Property("compute the same", _same_values),
        Property(
            "have the very parameters of `model`",
            _same_parameters,
            "An optimizer knows the parameters that it was given; copies of them are never updated.",
        ),
        Property(
            "move what that layer saves, and nothing else",
            _moves_one,
            "Hooks around the whole model move everything; `WithSavedTensorHooks(layer, hooks)` is one layer.",
        ),
        Property(
            "leave `model` as it is",
            _untouched,
            "`model[position] = ...` writes into the caller's model: make a list of the layers first.",
        ),
    ),
)

# ------------------------------------------------------------------------------------------------ the fewest layers

_WIDE = 40_960  # B: 40 rows of 256


@_drawing_nothing
def _plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 32)).float()


@_drawing_nothing
def _sharing() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 32)).float()


def _wanting(make: Callable[[], nn.Sequential], wanted: int) -> Callable[[], tuple]:
    return lambda: (make(), torch.ones(40, 64, dtype=torch.float32), wanted)


def _names(t: Trial) -> str | None:
    if not isinstance(t.result, (list, tuple, set)) or not all(isinstance(name, str) for name in t.result):
        return f"it returned {describe(t.result)}"
    known = [name for name, _ in t.args["model"].named_children()]
    strange = [name for name in t.result if name not in known]
    return f"{strange[0]!r} is no layer of the model" if strange else None


def _freed(t: Trial, names: list[str]) -> int:
    """Near bytes that the graph no longer keeps when what these layers save is moved away."""
    return _kept_near(t, []) - _kept_near(t, names)


def _kept_near(t: Trial, names: list[str]) -> int:
    from helpers.hooks import offload_to_cpu
    from helpers.memory import MemoryTracker  # without the collector, unlike `measure_memory`: this is asked often

    hooks = offload_to_cpu(t.args["model"], policy=names or (lambda tensor: False))
    with MemoryTracker(lines=False, groups=False) as run:
        with hooks:
            out = t.args["model"](t.args["x"] * 1)  # a copy, which the graph alone keeps
        live = run.live_bytes
    del out
    return live


def _frees_enough(t: Trial) -> str | None:
    freed = _freed(t, list(t.result))
    chosen = ", ".join(map(repr, t.result)) or "no layer"
    return None if freed >= t.args["wanted"] else f"{chosen}: {freed:,} B freed of {t.args['wanted']:,} B"


def _fewest(t: Trial) -> str | None:
    names = [name for name, _ in t.args["model"].named_children()]
    for count in range(len(set(t.result))):
        for fewer in itertools.combinations(names, count):
            if _freed(t, list(fewer)) >= t.args["wanted"]:
                less = ", ".join(map(repr, fewer)) or "no layer"
                return f"{len(t.result)} layers, where {less} would do"
    return None if len(set(t.result)) == len(t.result) else "a layer is named twice"


FEWEST_LAYERS = Exercise(
    name="fewest_layers",
    task="return the names of as few layers as possible whose offloading frees at least `wanted` bytes",
    parameters=("model", "x", "wanted"),
    cases=(
        Case("one layer is enough", _wanting(_plain, _WIDE)),
        Case("two layers are needed", _wanting(_plain, 2 * _WIDE)),
        Case("a ReLU whose result the next layer keeps too", _wanting(_sharing, _WIDE)),
        Case("nothing is wanted", _wanting(_plain, 0)),
    ),
    expect=lambda model, x, wanted: {},
    properties=(
        Property("return a list of names of layers", _names, 'The names are "0", "1", and so on.', True),
        Property(
            "free as many bytes as are wanted",
            _frees_enough,
            "A storage is freed when everyone who saved it lets go; the layer after a ReLU keeps the ReLU's result.",
        ),
        Property("name no more layers than are needed", _fewest, "Begin with those that free most."),
    ),
)

# ------------------------------------------------------------------------------------------------ hooks by hand


@_drawing_nothing
def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(48, 32), nn.Softplus(), nn.Linear(32, 16), nn.Tanh()).float()


def _picked(x: torch.Tensor) -> torch.Tensor:
    return x[torch.tensor([2, 0, 2])].t().exp() * x.t()[:, :3]


def _gradients(t: Trial, hooks: tuple | None, twice: bool = False) -> list[torch.Tensor]:
    model = t.args["model"]
    leaf = (torch.arange(4 * 48, dtype=torch.float32) / 50).view(4, 48).requires_grad_()
    leaves = [leaf, *model.parameters()]
    h = leaf * 1
    if hooks is None:
        out = model(h).sum() + _picked(h).sum()
    else:
        with saved_tensors_hooks(*hooks):
            out = model(h).sum() + _picked(h).sum()
    found = torch.autograd.grad(out, leaves, retain_graph=twice)
    return list(torch.autograd.grad(out, leaves)) if twice else list(found)


def _same_gradients(twice: bool) -> Callable[[Trial], str | None]:
    def test(t: Trial) -> str | None:
        wanted = _gradients(t, None)
        try:
            found = _gradients(t, t.result, twice)
        except Exception as error:  # whatever the reader's hooks raise belongs on the card
            return f"{type(error).__name__}: {message_of(error).partition(chr(10))[0][:90]}"
        return None if all(map(torch.equal, found, wanted)) else "gradients are others than without hooks"

    return test


def _lets_go(t: Trial) -> str | None:
    h = torch.ones(1000, requires_grad=True, dtype=torch.float32) * 1
    near = weakref.ref(h.untyped_storage())
    with saved_tensors_hooks(*t.result):
        out = (h * h).sum()
    del h
    gc.collect()
    held = near() is not None
    del out
    return "the memory of a tensor that was packed stays, as long as its graph does" if held else None


def _no_leak(t: Trial) -> str | None:
    from helpers.memory import MemoryTracker

    with MemoryTracker(lines=False, groups=False) as run:
        with saved_tensors_hooks(*t.result):
            (torch.ones(1000, requires_grad=True, dtype=torch.float32) * 1).exp()  # nobody keeps it
        gc.collect()
    left = run.live_bytes - run.start_bytes
    return f"an exp whose graph was dropped left {left:,} B behind" if left else None


def _skips_parameters(t: Trial) -> str | None:
    from helpers.memory import measure_memory

    weight = t.args["model"][2].weight
    pack, _ = t.result
    copied = measure_memory(pack, weight.t()).retained_bytes
    if copied:
        return f"packing a transposed weight of {weight.nbytes:,} B allocated {copied:,} B"
    look_alike = torch.ones_like(weight.detach()).t()
    copied = measure_memory(pack, look_alike).retained_bytes
    return None if copied else "a tensor that only has the shape of a weight was not copied"


def _notices(t: Trial) -> str | None:
    for what in ("activation", "parameter"):
        model, leaf = t.args["model"], torch.ones(4, 48, requires_grad=True, dtype=torch.float32)
        h = leaf * 1
        with saved_tensors_hooks(*t.result):
            out = (h * h).sum() + model(h).sum()
        with torch.no_grad():
            (h if what == "activation" else model[2].weight).mul_(1)
        try:
            out.backward()
        except RuntimeError:
            continue
        except Exception as error:  # another kind than PyTorch's own check raises
            return f"backward raised {type(error).__name__}, not RuntimeError"
        finally:
            model.zero_grad(set_to_none=True)
        return (
            f"{'an activation' if what == 'activation' else 'a parameter'} was written to, and backward raised nothing"
        )
    return None


FAR_HOOKS = Exercise(
    name="far_hooks",
    task="return `pack` and `unpack` that keep a copy, let the memory go, leave parameters and notice writes",
    parameters=("model",),
    cases=(Case("a small network, and positions beside it", lambda: (_net(),)),),
    expect=lambda model: {},
    properties=(
        returns_two_functions(),
        Property("give the gradients that there are without hooks, to the last bit", _same_gradients(False)),
        Property(
            "unpack a second time",
            _same_gradients(True),
            "With `retain_graph=True` backward runs twice, and asks twice for what was kept.",
        ),
        Property(
            "let go of the memory that was packed",
            _lets_go,
            "An alias in what `pack` returns keeps all of it: `alias.data = torch.empty(0)` leaves its counter alone.",
        ),
        Property(
            "keep nothing alive longer than the graph does",
            _no_leak,
            "A saved result holds its own graph: detach it first. A list or dictionary of your own never forgets.",
        ),
        Property(
            "leave parameters where they are, known by their storage",
            _skips_parameters,
            "A weight comes as a transposed view: compare `untyped_storage().data_ptr()`, not shapes or types.",
        ),
        Property(
            "make backward raise when something kept was written to",
            _notices,
            "Keep `t._version`, compare it in `unpack`, for parameters too, and raise RuntimeError.",
        ),
    ),
)

EXERCISES = (WRAP_LAYER, FEWEST_LAYERS, FAR_HOOKS)
