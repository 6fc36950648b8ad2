"""What are the answers to choose from, and which of them was measured? The values under `predict`."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
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
        return a == b or (float in (type(a), type(b)) and math.isclose(a, b, rel_tol=rounding))
    return type(a) is type(b) and bool(a == b)


def match_option(options: Sequence[Any], measured: Any, rounding: float) -> Any:
    """Returns the option that was measured, None if there is none; a float may be as far off as its dtype rounds."""
    exact = next((o for o in options if same(o, measured)), None)
    if exact is not None or not isinstance(measured, float):
        return exact
    near = [o for o in options if isinstance(o, float) and same(o, measured, rounding)]
    return min(near, key=lambda o: abs(o - measured), default=None)


def rounding_of(value: Any) -> float:
    """How far, in proportion, a value of this dtype may be from the number it stands for."""
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return {"float32": 1e-6, "float16": 1e-2, "bfloat16": 1e-2}.get(name, 1e-9)


def plain_option(value: Any) -> Any:
    """Returns an option as `plain` returns a result, so that the two can meet."""
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        if value.ndim:
            raise TypeError(f"options: expected single values, got a {type(value).__name__} of {tuple(value.shape)}")
        return value.item()
    return value


def plain(value: Any) -> Any:
    """Returns what was measured as a plain Python value, which holds no memory and has one meaning of ``==``."""
    if isinstance(value, torch.Size):
        return tuple(value)
    if hasattr(value, "numel") or hasattr(value, "ndim"):  # a tensor, an array, a NumPy scalar
        if getattr(value, "ndim", 0) or not hasattr(value, "item"):
            raise TypeError(
                f"run returned a {type(value).__name__} of shape {tuple(value.shape)}; a prediction is decided by one "
                "value: return that, or pass key= to make it from what run returned"
            )
        return value.item()
    if value is None:
        raise TypeError("run returned None; it must return what it measured (is a `return` missing?)")
    return value
