"""What changes when a setting does? Controls over a measurement: move one, it runs again, and is laid over the last.

The body is a pure function of the controls' values, so whatever a reader can reach with a mouse a test reaches with
`Playground.set`. Only what ipywidgets 7.7.1 and 8 have in common is used.
"""

from __future__ import annotations

import html
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ._byte_bars import draw_bytes as draw_bytes
from ._predict_card import check_height, keep_on_screen, shown
from ._properties import message_of, typed
from .display import MAX_WIDTH, in_notebook
from .exercises import WIDGET_VIEW

_STATIC = "Run the cell to move the controls."
_LET_GO = "This is an earlier run, and no longer kept. Run the cell again to move the controls."


def playground(
    body: Callable[..., Any],
    *,
    show: Callable[[Any, Any], Any] | None = None,
    height: int = 340,
    **controls: Any,
) -> Playground:
    """Runs ``body`` with the value of each control, and again whenever one is moved.

    Args:
        body: a function of the controls' values, by name, that returns what it measured and changes nothing else.
        show: of that and of what the run before gave (None at first), the `Picture`, `Table` or sentence to show, or a
            list of such, one under the other; without it ``body`` returns them itself.
        height: px kept free for it, so that nothing below moves.
        **controls: for each argument of ``body`` a tuple (least, default, greatest) or (least, default, greatest, step)
            of whole numbers, a slider; or a list of at least two choices, the first of which is the default.

    Returns:
        A `Playground`. As the last value of a cell it shows its controls; the saved file keeps the default's picture.
        It is kept, with ``body`` and what that returned, as long as a name or IPython's `Out` holds it, and at least
        until the cell that shows it runs again.

    Raises:
        TypeError: ``body`` or ``show`` cannot be called, or a control or ``height`` is of another kind.
        ValueError: there is no control, a default lies outside its range, or a list has fewer than two choices, None
            as one, or two that are equal (0 and False are) or read the same: the control could not tell them apart.
        Whatever ``body`` raises with the defaults.

    Example:
        >>> play = playground(lambda n, double: 2 * n if double else n, show=lambda now, before: f"{before} -> {now}",
        ...                   n=(1, 3, 9), double=[False, True])
        >>> play
        n = 3, double = False
        None -> 3
        >>> play.set(n=9, double=True).result
        18
    """
    for name, thing in (("body", body), *((("show", show),) if show is not None else ())):
        if not callable(thing):
            raise TypeError(f"{name}: expected a function, got {thing!r}")
    check_height(height)
    if not controls:
        raise ValueError("a playground without a control: give the arguments of body, as in batch=(1, 8, 64)")
    return Playground(body, show or (lambda now, before: now), controls, height)


class Playground:
    """Controls and what they led to. Made by `playground`.

    Attributes:
        values: name -> value of each control.
        result: what ``body`` returned last; None after an error.
        before: what it returned the time before that; None at first.
        picture: what ``show`` made of the two.
        error: type and message, if ``body`` or ``show`` raised; else "".
    """

    def __init__(self, body: Callable, show: Callable, controls: dict[str, Any], height: int):
        self.body, self.show, self.height = body, show, height
        self.ranges = {name: _read(name, given) for name, given in controls.items()}
        self.values = {name: kind.default for name, kind in self.ranges.items()}
        self.result = self.before = self.picture = None
        self.error = self._said = self._shown = ""
        self._running = False
        self._widgets: dict[str, Any] | None = None
        self._box: Any = None
        self._run()

    def set(self, **values: Any) -> Playground:
        """Moves controls, as a hand would, and runs once; returns the playground itself.

        Raises:
            ValueError: for a name that is no control, or a value that it cannot have.
            RuntimeError: if the body calls it while it runs.
            Whatever the body raises; under a control it is shown instead.
        """
        if self._running:
            raise RuntimeError("set was called by the body it would run: a body takes its values and moves no control")
        for name, value in values.items():
            if name not in self.ranges:
                raise ValueError(f"there is no control {name!r}; there are {', '.join(self.ranges)}")
            if not self.ranges[name].has(value):
                raise ValueError(f"{name} cannot be {value!r}: {self.ranges[name]}")
        self.values |= values
        try:
            self._run()
        finally:
            self._refresh()
        return self

    def settings(self) -> Iterator[dict[str, Any]]:
        """All at their defaults; then each at its least and its greatest, or at each choice, with the others there."""
        defaults = {name: kind.default for name, kind in self.ranges.items()}
        yield defaults
        for name, kind in self.ranges.items():
            for value in kind.ends:
                if value != kind.default:
                    yield defaults | {name: value}

    def _run(self) -> None:
        self.error, self._running = "", True
        before, self.result = self.result if self.result is not None else self.before, None
        self.before = before
        try:
            result = self.body(**self.values)
            self.picture = self.show(result, before)
            # Here, and not when they are asked for: what cannot be shown stops the run like all else that goes wrong.
            parts = self.picture if isinstance(self.picture, list) else [self.picture]
            self._said = "\n".join(map(str, parts))
            self._shown = "".join(shown(part) or f"<p>{html.escape(str(part))}</p>" for part in parts)
            self.result = result
        except BaseException as error:
            self.error = typed(error, message_of(error))
            raise
        finally:
            self._running = False

    @property
    def title(self) -> str:
        """The values in one line."""
        return ", ".join(f"{name} = {value}" for name, value in self.values.items())

    @property
    def html(self) -> str:
        """What the controls led to, without the controls."""
        if self.error:
            return f"<p>{html.escape(self.title)}: it stopped with {html.escape(self.error)}</p>"
        return self._shown

    def __repr__(self) -> str:
        return f"{self.title}\n{f'stopped with {self.error}' if self.error else self._said}"

    @property
    def widgets(self) -> dict[str, Any]:
        """The widgets, made at the first use: one under each control's name, ``""`` for what is shown."""
        if self._widgets is None:
            import ipywidgets as w

            wide = w.Layout(width="auto", max_width="420px")
            style = {"description_width": "110px"}
            self._widgets = {name: kind.widget(w, name, wide, style) for name, kind in self.ranges.items()}
            output = w.HTML(layout=w.Layout(min_height=f"{self.height}px"))
            for name, widget in self._widgets.items():
                widget.observe(_mover(weakref.ref(self), name, output), "value")
            self._widgets[""] = output
            self._refresh()
        if in_notebook():
            keep_on_screen(self)
        return self._widgets

    @property
    def box(self) -> Any:
        """The controls over what they led to, as one widget."""
        parts = list(self.widgets.values())
        if self._box is None:
            import ipywidgets as w

            self._box = w.VBox(parts, layout=w.Layout(max_width=f"{MAX_WIDTH + 20}px"))
        return self._box

    def _moved(self, name: str, value: Any) -> None:
        # Moved by the body while it runs: `_refresh` puts it back, so that it stands at what the result belongs to.
        if self._running or (self.values[name] == value and type(self.values[name]) is type(value)):
            return
        self.values[name] = value
        # Nobody sees what a callback raises, and sys.exit() would end the kernel; the output says it.
        with suppress(BaseException):
            self._run()
        self._refresh()

    def _refresh(self) -> None:
        if self._widgets is None:
            return
        for name, value in self.values.items():
            self._widgets[name].value = value
        # JupyterLab keeps the cells of a table apart in an output, but not in a widget.
        apart = self.html.replace('style="text-align:', 'style="padding:0 16px 0 0;text-align:')
        self._widgets[""].value = f'<div role="status" style="line-height:1.5;white-space:normal">{apart}</div>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        # The widget while its model lives, HTML everywhere else: see `helpers.exercises.Prediction`.
        bundle: dict[str, Any] = {
            "text/html": f"<p>{html.escape(self.title)}. {_STATIC}</p>{self.html}",
            "text/plain": repr(self),
        }
        if in_notebook():
            try:
                box = self.box
            except ImportError:
                return bundle
            bundle[WIDGET_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
        return bundle


def _mover(whose: weakref.ref[Playground], name: str, output: Any) -> Callable[[Any], None]:
    """What a control calls. ipywidgets keeps every widget, and so this: held firmly, no playground would ever go."""

    def moved(change: Any) -> None:
        play = whose()
        if play is None:
            output.value = f'<p role="status">{_LET_GO}</p>'
        else:
            play._moved(name, change["new"])

    return moved


class _Slider:
    def __init__(self, least: int, default: int, greatest: int, step: int = 1):
        self.least, self.default, self.greatest, self.step = least, default, greatest, step
        self.ends = (least, greatest)

    def has(self, value: Any) -> bool:
        return _whole(value) and self.least <= value <= self.greatest and (value - self.least) % self.step == 0

    def __str__(self) -> str:
        return f"it goes from {self.least} to {self.greatest}" + (f" by {self.step}" if self.step > 1 else "")

    def widget(self, w: Any, name: str, layout: Any, style: Any) -> Any:
        # Not while it moves: the body would run for every value on the way.
        return w.IntSlider(
            self.default, self.least, self.greatest, self.step,
            description=name.replace("_", " "), continuous_update=False, layout=layout, style=style,
        )  # fmt: skip


class _Choices:
    def __init__(self, choices: list):
        self.choices, self.default, self.ends = list(choices), choices[0], tuple(choices)

    def has(self, value: Any) -> bool:
        return any(value == choice and type(value) is type(choice) for choice in self.choices)

    def __str__(self) -> str:
        return f"it is one of {', '.join(map(repr, self.choices))}"

    def widget(self, w: Any, name: str, layout: Any, style: Any) -> Any:
        options = [(str(choice), choice) for choice in self.choices]
        return w.Dropdown(
            options=options, value=self.default, description=name.replace("_", " "), layout=layout, style=style
        )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_choices(name: str, choices: list) -> None:
    """A `Dropdown` finds its choice by ==: of two that are equal it would show the one and run the other."""
    instead = "pass strings, say, and let body look up what each stands for"
    for i, choice in enumerate(choices):
        if choice is None:
            raise ValueError(
                f"{name}: None cannot be a choice, since to the control it is that nothing is chosen; {instead}"
            )
        try:
            itself, twins = bool(choice == choice), [other for other in choices[:i] if choice == other]
        except Exception:  # a tensor of several elements is neither true nor false
            itself, twins = False, []
        if not itself:  # NaN neither
            raise ValueError(f"{name}: {choice!r} cannot be a choice, since == does not find it again; {instead}")
        twins += [other for other in choices[:i] if str(choice) == str(other)]
        if twins:
            raise ValueError(f"{name}: the choices {twins[0]!r} and {choice!r} are equal or read the same; {instead}")


def _read(name: str, given: Any) -> _Slider | _Choices:
    if isinstance(given, list):
        if len(given) < 2:
            raise ValueError(f"{name}: a list of choices has at least two, got {given!r}")
        _check_choices(name, given)
        return _Choices(given)
    if isinstance(given, tuple) and len(given) in (3, 4) and all(map(_whole, given)):
        slider = _Slider(*given)
        if slider.step < 1 or not slider.has(slider.default) or not slider.has(slider.greatest):
            raise ValueError(f"{name}: (least, default, greatest, step) do not fit each other: {given!r}")
        return slider
    raise TypeError(
        f"{name}: a control is a tuple (least, default, greatest) of whole numbers or a list of choices, got {given!r}"
    )
