"""How is a prediction shown? As widgets while a kernel is there, as a plain HTML card and as text everywhere else.

`helpers.exercises.Prediction` holds the facts; everything here only reads them. The saved notebook holds no widget
state, so the HTML and the text have to carry the question, the code and the options alone.
"""

from __future__ import annotations

import ast
import dis
import html
import inspect
import math
import numbers
import re
import textwrap
import weakref
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from helpers.display import MAX_WIDTH, text_width

if TYPE_CHECKING:
    from helpers.exercises import Prediction

COMMIT, SHOW = "Commit and run", "Show me"
# The arrow keys are not offered: JupyterLab takes them for moving between cells, and the card would lose the focus.
WAITING = (
    "Nothing has run yet. Choose an answer and commit to it; the measured result decides. "
    "By keyboard: Tab moves, Space chooses and presses."
)
CHOOSE_FIRST = (
    f"No answer is chosen yet. Choose one, then press “{COMMIT}”; or press “{SHOW}” to run without an answer."
)
LET_GO = "The question was asked anew since, and this card is no longer kept. Run the cell again to answer here."
STATIC = "The answer is measured, not stored: run the cell to commit to one."
BOX = f"border:1px solid #999;padding:8px 14px;max-width:{MAX_WIDTH - 30}px;line-height:1.5"
_FONT_SIZE, _LINE = 13, 21  # px, both rather too large than too small: they reserve room


def prose(text: str) -> str:
    """Returns one sentence as HTML: escaped, and what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def source_of(run: Callable) -> str:
    """Returns the code that ``run`` will run: a lambda's body, a function's text, ``""`` where Python kept none.

    A lambda's own source is the whole statement around it, here the question with all its options; so its body is
    looked up by the place of its instructions. Where none fits it is ``""``: wrong code would be worse than none.
    """
    try:
        lines, _ = inspect.findsource(run)
        if run.__name__ != "<lambda>":
            return textwrap.dedent(inspect.getsource(run)).rstrip()
        text = "".join(line if line.endswith("\n") else line + "\n" for line in lines)
        tree = ast.parse(text)
    except (OSError, TypeError, AttributeError, SyntaxError):
        return ""
    places = _places(run.__code__)
    around = [n.body for n in ast.walk(tree) if isinstance(n, ast.Lambda) and _within(places, n.body)]
    # Of nested lambdas the innermost that holds every instruction is the one: the outer one has instructions beyond it.
    body = min(around, key=lambda b: len(ast.get_source_segment(text, b) or ""), default=None)
    return textwrap.dedent(ast.get_source_segment(text, body) or "") if body is not None else ""


def _places(code: CodeType) -> list[tuple]:
    # The return of a lambda and the opening instructions carry the place of the lambda or of its line, not of its body.
    around = {"RESUME", "RETURN_VALUE", "COPY_FREE_VARS", "MAKE_CELL", "NOP"}
    places = [i.positions for i in dis.get_instructions(code) if i.opname not in around and i.positions]
    return [tuple(p) for p in places if None not in p]


def _within(places: list[tuple], body: ast.expr) -> bool:
    first, last = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    return bool(places) and all(first <= (p[0], p[2]) and (p[1], p[3]) <= last for p in places)


def shown(result: Any) -> str:
    """Returns the HTML by which ``result`` shows itself, ``""`` if it has none. The result itself is not kept."""
    bundle = getattr(type(result), "_repr_mimebundle_", None)
    if bundle is not None:
        data = bundle(result)
        return (data[0] if isinstance(data, tuple) else data).get("text/html", "")
    as_html = getattr(type(result), "_repr_html_", None)
    return (as_html(result) or "") if as_html is not None else ""


# ---------------------------------------------------------------------------------------------------- words


def verdict_lines(p: Prediction) -> list[tuple[str, str]]:
    """Returns what is said after a run, in order, as (kind, sentence); empty before it."""
    if p.error:
        return [("error", f"The code stopped with {p.error}"), ("note", "Nothing was measured, so nothing is decided.")]
    if p.measured is None:
        return []
    measured = p.measured if p.outcome is None else p.outcome
    lines = [("measured", f"Measured: {p.label(measured)}.")]
    if p.outcome is None:
        lines.append(("unmatched", p.explanation))
    elif p.answer is None:
        lines.append(("verdict", "You asked to be shown; no answer was committed."))
    elif p.right:
        lines.append(("verdict", "As you predicted."))
    else:
        lines.append(("verdict", f"You predicted {p.label(p.answer)}."))
        lines.append(("belief", p.explanation))
    if p.note:
        lines.append(("note", p.note))
    return lines


def as_text(p: Prediction) -> str:
    """Returns the card in plain text."""
    parts = [f"Predict, then run: {p.question}"]
    if p.code:
        parts.append(textwrap.indent(p.code, "    "))
    parts.append("\n".join(f"  {'(x)' if p.is_answer(o) else '( )'} {p.label(o)}" for o in p.options))
    parts.append("\n".join(s for _, s in verdict_lines(p)) or STATIC)
    return "\n".join(parts)


def head_html(p: Prediction) -> str:
    """Returns question and code."""
    plain = "background:transparent;color:inherit"  # the reader's theme, light or dark
    pre = f"margin:6px 0;padding:0 0 0 10px;border-left:3px solid #999;line-height:1.4;{plain}"
    pre += ";white-space:pre-wrap;word-break:normal"
    text = html.escape(p.code, quote=False)
    code = f'<pre style="{pre}"><code style="{plain};padding:0">{text}</code></pre>' if text else ""
    return f'<p style="margin:2px 0 6px"><strong>Predict, then run.</strong> {prose(p.question)}</p>{code}'


def result_html(p: Prediction, waiting: str = WAITING) -> str:
    """Returns what was measured, whether it was predicted, and the belief behind a wrong answer."""
    lines = verdict_lines(p)
    if not lines:
        return f'<p style="margin:2px 0;font-style:italic">{prose(waiting)}</p>'
    body = "".join(
        f'<p style="margin:2px 0{";font-weight:bold" if kind == "measured" else ""}">{prose(s)}</p>'
        for kind, s in lines
    )
    return body + p.shown


def as_html(p: Prediction) -> str:
    """Returns the card that needs no kernel: what GitHub shows and what the saved notebook keeps."""
    options = "".join(
        f"<li>{html.escape(p.label(o))}{' <strong>(your answer)</strong>' if p.is_answer(o) else ''}</li>"
        for o in p.options
    )
    if verdict_lines(p):
        tail = result_html(p)
    else:
        rows = "".join(f"<dt>{html.escape(p.label(o))}</dt><dd>{prose(p.beliefs[o])}</dd>" for o in p.options)
        tail = (
            f"<p>{STATIC}</p><details><summary>No kernel here? What each answer says if it is not the measured one"
            f"</summary><dl>{rows}</dl></details>"
        )
    return f'<div style="{BOX}">{head_html(p)}<ul>{options}</ul>{tail}</div>'


# ---------------------------------------------------------------------------------------------------- widgets

# What cells show with callbacks behind it, each cell with its latest run: what it showed before has left the screen.
_on_screen: dict[str, tuple[str, list[Any]]] = {}


def keep_on_screen(thing: Any) -> None:
    """Holds ``thing`` until the cell whose code runs now runs again, so that its controls go on without a name for it.

    The widgets cannot do so. ipywidgets keeps every one, with its callbacks, as long as the kernel lives: whatever they
    held would never go, however often the cell that made it ran again.
    """
    from IPython import get_ipython

    request = getattr(get_ipython(), "parent_header", {})  # all of the message, in spite of the name
    run = request.get("header", {}).get("msg_id", "")
    # Front ends that do not name their cells are told apart by the code. A callback's message has neither.
    cell = request.get("metadata", {}).get("cellId") or request.get("content", {}).get("code") or run
    latest, held = _on_screen.get(cell, (run, []))
    held = held if latest == run else []
    if not any(thing is other for other in held):
        held.append(thing)
    _on_screen[cell] = run, held


def _lines(text: str) -> int:
    return max(1, math.ceil(text_width(text, _FONT_SIZE) / (MAX_WIDTH - 60)))


def reserved(p: Prediction) -> int:
    """Returns the px kept free under the buttons, enough for the longest verdict, so that nothing below moves."""
    note = 2 if callable(p.why) else max(map(_lines, [p.why] if p.why else p.outcomes.values()), default=0)
    belief = max(_lines(b) for b in p.beliefs.values())
    longest = max(_lines(f"You predicted {p.label(o)}.") for o in p.options)
    return max(4, 1 + longest + belief + note) * _LINE + 8 + p.height


def check_height(height: Any) -> None:
    """Raises TypeError if ``height`` is no whole number of px."""
    if not isinstance(height, numbers.Integral) or isinstance(height, bool) or height < 0:
        raise TypeError(f"height: expected px to keep free as a whole number, 0 or more, got {height!r}")


class Card:
    """The widgets of one prediction. Uses only what ipywidgets 7.7.1 and 8 have in common."""

    def __init__(self, p: Prediction):
        try:
            import ipywidgets as widgets
        except ImportError as error:
            raise ImportError(
                "the buttons of a prediction need ipywidgets: pip install 'ipywidgets>=7.7,<9'. "
                "Without it call .commit(option) or .show() on the prediction."
            ) from error
        self._prediction = weakref.ref(p)  # see `keep_on_screen`
        # Positions as values, not the options: the widget finds a value by ==, to which 1 and True are the same.
        self.choice = widgets.RadioButtons(
            options=[(p.label(o), i) for i, o in enumerate(p.options)],
            index=None,
            description="Your answer:",
            style={"description_width": "initial"},
            layout=widgets.Layout(width="auto"),
        )
        # Never disabled: a disabled button loses the keyboard's focus, and the next key would go to the notebook.
        wide = widgets.Layout(width="150px")
        self.commit = widgets.Button(
            description=COMMIT, tooltip="Run the code and compare it with the chosen answer", layout=wide
        )
        self.show = widgets.Button(description=SHOW, tooltip="Run the code without an answer", layout=wide)
        self.commit.on_click(lambda _: self._pressed(commit=True))
        self.show.on_click(lambda _: self._pressed(commit=False))
        self.result = widgets.HTML(layout=widgets.Layout(min_height=f"{reserved(p)}px", margin="6px 2px 0 2px"))
        self.box = widgets.VBox(
            [
                widgets.HTML(self._styled(head_html(p))),
                self.choice,
                widgets.HBox([self.commit, self.show]),
                self.result,
            ],
            layout=widgets.Layout(border="1px solid #999", padding="8px 14px", max_width=f"{MAX_WIDTH}px"),
        )
        self.refresh(p)

    @staticmethod
    def _styled(body: str) -> str:
        # ipywidgets gives an HTML widget lines of 28 px, made for labels and not for sentences.
        return f'<div style="line-height:1.5;white-space:normal;overflow-wrap:break-word">{body}</div>'

    def refresh(self, p: Prediction, waiting: str = WAITING) -> None:
        """Draws the state of the prediction, however it was reached."""
        answered = [i for i, o in enumerate(p.options) if p.is_answer(o)]
        if answered:
            self.choice.index = answered[0]
        # role="status": a screen reader speaks the result when it arrives, without moving there.
        self.result.value = self._styled(f'<div role="status">{result_html(p, waiting)}</div>')

    def busy(self) -> None:
        """Says that the code runs. Sent at once: the kernel handles the message before it starts to measure."""
        self.result.value = self._styled('<div role="status"><p style="margin:2px 0">Running and measuring …</p></div>')

    def _pressed(self, *, commit: bool) -> None:
        p, position = self._prediction(), self.choice.index
        if p is None:
            self.result.value = self._styled(f'<p role="status">{LET_GO}</p>')
            return
        if commit and position is None:
            self.refresh(p, CHOOSE_FIRST)
            return
        try:
            p.commit(p.options[position]) if commit else p.show()
        except BaseException:  # nobody sees what a callback raises, sys.exit() ends the kernel; the card says it
            if not p.error:
                raise
