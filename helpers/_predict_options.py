"""What are the answers to choose from, and which of them was measured? The values under `predict`."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch


def read_options(options: Any, why: Any) -> tuple[list[Any], list[str]]:
    if not (why is None or isinstance(why, (Mapping, str)) or callable(why)):
        raise TypeError(f"why: expected a sentence, a function that makes one, or a mapping of options, got {why!r}")
    if isinstance(options, Mapping):
        answers, sentences = list(map(plain_option, options)), list(options.values())
        if isinstance(why, Mapping):
            _check_outcomes(why, answers, sentences)
    elif isinstance(options, Sequence) and not isinstance(options, (str, bytes)):
        answers = list(map(plain_option, options))
        if why is not None and not isinstance(why, Mapping):
            why = None  # a sentence about the result, which says nothing of any option
        _check_keys(why or {}, answers)
        sentences = [next((s for a, s in (why or {}).items() if same(a, option)), None) for option in answers]
    else:
        raise TypeError(
            f"options: expected a mapping of answers to sentences, or a list of answers, got {type(options).__name__}"
        )
    if len(answers) < 2:
        raise ValueError(f"a prediction needs at least two options to choose from, got {answers!r}")
    for i, (answer, sentence) in enumerate(zip(answers, sentences, strict=True)):
        if answer is None:
            raise ValueError("None means 'not answered yet' and cannot be an option: use the string 'None'")
        if isinstance(answer, float) and math.isnan(answer):
            raise ValueError(
                "NaN equals nothing, not even itself, so no result could be this option: use the string 'nan', and let "
                "run return it"
            )
        if any(same(answer, other) for other in answers[:i]):
            raise ValueError(f"the option {answer!r} is there twice: {answers!r}")
        if not isinstance(sentence, str) or not sentence.strip():
            raise ValueError(
                f"the option {answer!r} has no sentence for the belief behind choosing it wrongly. Each needs one, "
                "since which one is right is only known after measuring: options={option: sentence, ...}"
            )
        if sentence in sentences[:i]:
            raise ValueError(f"the option {answer!r} shares its sentence with another; give each belief its own")
    return answers, sentences


def _check_keys(why: Mapping[Any, Any], answers: list[Any]) -> None:
    extra = [a for a in why if not any(same(a, b) for b in answers)]
    if extra:
        raise ValueError(f"why has a sentence for {extra[0]!r}, which is not one of the options {answers!r}")


def _check_outcomes(why: Mapping[Any, Any], answers: list[Any], beliefs: list[Any]) -> None:
    _check_keys(why, answers)
    for option, sentence in why.items():
        if not isinstance(sentence, str) or not sentence.strip():
            raise ValueError(f"why: expected a sentence for {option!r}, got {sentence!r}; leave it out to say nothing")
        if sentence in beliefs:
            raise ValueError(
                f"both options and why say {sentence!r}: options holds the belief behind choosing wrongly, why what is "
                "to be said when that option turns out to be measured"
            )


def same(a: Any, b: Any, rounding: float = 1e-9) -> bool:
    """Whether two answers are the same: True is not 1, and floats need not agree to the last bit."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, numbers.Real) and isinstance(b, numbers.Real):
        return a == b or _close(a, b, rounding)
    if type(a) is not type(b):
        return False
    if isinstance(a, (dict, set, frozenset)):  # in no order
        ours, theirs = (list(x.items() if isinstance(x, dict) else x) for x in (a, b))
        return len(ours) == len(theirs) and all(any(same(x, y, rounding) for y in theirs) for x in ours)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same(x, y, rounding) for x, y in zip(a, b))
    return bool(a == b)


def _close(a: Any, b: Any, rounding: float) -> bool:
    floats = (type(a), type(b)).count(float)
    try:
        return floats > 0 and math.isclose(a, b, rel_tol=rounding if floats == 2 else 1e-9)
    except OverflowError:  # a whole number beyond all floats
        return False


def match_option(options: Sequence[Any], measured: Any, rounding: float) -> Any:
    """Returns the option that was measured, None if there is none; a float may be as far off as its dtype rounds."""
    exact = next((o for o in options if same(o, measured)), None)
    if exact is not None:
        return exact
    near = [o for o in options if same(o, measured, rounding)]
    if isinstance(measured, float):
        return min(near, key=lambda o: abs(o - measured), default=None)
    return near[0] if len(near) == 1 else None


def told(value: Any, most: int = 300) -> str:
    """Returns ``value`` as Python writes it, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes out no whole number of more than 4,300 digits
        if not isinstance(value, int):
            return f"a {type(value).__name__} with a number too long to write out"
        return f"a whole number of about {math.log10(abs(value)):,.0f} digits"
    return text if len(text) <= most else f"{text[:most]} …"


# Words that end like others and are not made like them.
_ONE = {
    "aliases": "alias", "axes": "axis", "biases": "bias", "caches": "cache", "halves": "half", "indices": "index",
    "leaves": "leaf", "matrices": "matrix", "series": "series", "species": "species", "vertices": "vertex",
}  # fmt: skip
# All other words: the first that fits says which part stays, and what comes behind it.
_ENDS = (
    (r"(.{2,})ies", "y"),  # copies
    (r"(.+(ss|sh|x|[nrt]ch))es", ""),  # passes, boxes, batches
    (r"(.+([ai]s|iz|[^hosxz])e)s", ""),  # phases, sizes, bytes; of buses nobody can tell whether it is buse
    (r"(.+[^eisx])s", ""),  # calls
)


def one_of(unit: str) -> str:
    """Returns what one of ``unit`` is called; ``unit`` itself if it is no word for many, or its end does not tell.

    Example:
        >>> [one_of(unit) for unit in ("calls", "copies", "boxes", "pieces", "buses", "ms")]
        ['call', 'copy', 'box', 'piece', 'buses', 'ms']
    """
    if not re.fullmatch("[a-z]{4,}", unit):
        return unit
    found = ((re.fullmatch(many, unit), end) for many, end in _ENDS)
    return _ONE.get(unit) or next((match[1] + end for match, end in found if match), unit)


def rounding_of(value: Any) -> float:
    """How far, in proportion, a value of this dtype may be from the number it stands for."""
    if type(value) in (tuple, list):
        return max(map(rounding_of, value), default=1e-9)
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return {"float32": 1e-6, "float16": 1e-2, "bfloat16": 1e-2}.get(name, 1e-9)


def plain_option(value: Any) -> Any:
    """Returns an option as `plain` returns a result, so that the two can meet."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and value.ndim:
        raise TypeError(f"options: expected single values, got a {type(value).__name__} of {tuple(value.shape)}")
    return _unwrapped(value, lambda part: part)


def plain(value: Any, giver: str = "run") -> Any:
    """Returns what was measured as a plain Python value, which holds no memory and has one meaning of ``==``.

    Args:
        giver: the argument of `predict` that made it, as errors name it.
    """
    if value is None:
        raise TypeError(f"{giver} returned None; it must return what it measured (is a `return` missing?)")

    def refuse(part: Any) -> Any:
        if isinstance(part, _PLAIN):
            return part
        # A tensor, a module or a record of one would live in the prediction as long as the kernel does.
        shape = f" of shape {tuple(part.shape)}" if isinstance(part, (torch.Tensor, np.ndarray)) else ""
        inside = "" if part is value else f", inside a {type(value).__name__}"
        raise TypeError(
            f"{giver} returned a {type(part).__name__}{shape}{inside}; a prediction is decided by one value, a number, "
            f"a string, True or False, a dtype, or a tuple or list of these: "
            + (
                "return that, or pass key= to make it from what run returned"
                if giver == "run"
                else "let key return that"
            )
        )

    return _unwrapped(value, refuse)


_PLAIN = (
    numbers.Number, str, bytes, type(None), type, np.dtype,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme,
)  # fmt: skip


def _unwrapped(value: Any, other: Callable[[Any], Any]) -> Any:
    """Returns ``value`` with Python's own kind of each number and tuple in it; what is neither goes to ``other``."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and not value.ndim:
        return other(value.item())
    if isinstance(value, tuple):  # a torch.Size, a named tuple
        return tuple(_unwrapped(part, other) for part in value)
    if type(value) in (list, set, frozenset):
        return type(value)(_unwrapped(part, other) for part in value)
    if type(value) is dict:
        return {_unwrapped(k, other): _unwrapped(part, other) for k, part in value.items()}
    return other(value)
