"""How is the atlas shown? A table to search while a kernel is there, the names by outcome where none is."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from .display import MAX_WIDTH, SHARED, Table

if TYPE_CHECKING:
    from .atlas import Atlas, Entry

# Label in the menu -> what `Atlas.find` is asked.
FILTERS: dict[str, dict[str, Any]] = {
    "every operator": {},
    "view": {"outputs": "view"},
    "new memory, the input's values": {"outputs": "new memory", "copies": True},
    "new memory, computed": {"outputs": "new memory", "copies": False},
    "depends on the input": {"outputs": "depends"},
    "same object": {"outputs": "same object"},
    "no tensor": {"outputs": "no tensor"},
    "could not run here": {"outputs": "not run"},
    "methods and indexes added here": {"source": "added"},
}
KEPT: dict[str, dict[str, Any]] = {
    "keeps anything or nothing": {},
    "keeps no tensor": {"saves": ()},
    "keeps the input": {"saves": ("input",)},
    "keeps the output": {"saves": ("output",)},
    "keeps input and output": {"saves": ("input", "output")},
    "keeps something else": {"saves": ("other",)},
}
_SIGNS = {"view": "V", "same object": "S", "new memory": "N", "depends": "D", "no tensor": "–", None: "?"}
LEGEND = "V view · N new memory · S the same object · D depends on the input · – no tensor · ? could not run here"
_PRE = (
    "margin:4px 0;padding:6px 8px;border:1px solid #999;white-space:pre-wrap;overflow-wrap:anywhere;"
    "word-break:normal;"
    "font-family:monospace;font-size:12px;line-height:1.4;background:transparent;color:inherit"
)


def entry_html(e: Entry) -> str:
    """Returns one operator: verdict, evidence, the in-place form, what backward keeps, and the proof."""
    colour = SHARED if e.outputs in ("view", "same object", "depends") else "#999999"
    parts = [
        f'<p style="margin:0 0 6px;padding-left:8px;border-left:6px solid {colour}"><strong><code>{html.escape(e.name)}'
        f"</code></strong><br>{html.escape(e.verdict)}</p>"
    ]
    if e.evidence:
        rows = "".join(
            f"<li><strong>{html.escape(x.outcome)}</strong>, {x.calls:,} call{'s' * (x.calls != 1)}, as "
            f"<code>{html.escape(x.call)}</code> → <code>{html.escape(x.result)}</code></li>"
            for x in e.evidence
        )
        parts.append(f'<ul style="margin:0 0 6px;padding-left:20px">{rows}</ul>')
        parts.append(f'<p style="margin:0 0 6px">For backward it {html.escape(e.keeps)}.</p>')
    if e.in_place is not None:
        parts.append(f'<p style="margin:0 0 6px">In place, {html.escape(str(e.in_place))}.</p>')
    if e.proof:
        parts.append(f'<p style="margin:0">A proof to run:</p><pre style="{_PRE}">{html.escape(e.proof)}</pre>')
    return "".join(parts)


def as_html(atlas: Atlas) -> str:
    """Returns the table that needs no kernel: counts, then every name under its outcome."""
    parts = [atlas.summary().html]
    for label, asked in list(FILTERS.items())[1:]:
        names = atlas.find(**asked)
        if not names:
            continue
        if asked.get("outputs") == "depends":
            rows = [[name, "; ".join(f"{x.outcome}: {x.call}" for x in atlas[name].evidence)] for name in names]
            body = Table(["operator", "each outcome, with an input that has it"], rows).html
        elif asked.get("outputs") == "not run":
            body = Table(["operator", "why"], [[name, atlas[name].reason] for name in names]).html
        else:
            body = f'<p style="line-height:1.6">{", ".join(f"<code>{html.escape(n)}</code>" for n in names)}</p>'
        parts.append(f"<details><summary>{html.escape(label)}: {len(names):,} names</summary>{body}</details>")
    return f'<div style="max-width:{MAX_WIDTH}px">{"".join(parts)}</div>'


def mimebundle(atlas: Atlas) -> dict[str, Any]:
    """Returns the widget view beside the HTML and the text that stand without a kernel."""
    bundle: dict[str, Any] = {"text/html": atlas.html, "text/plain": repr(atlas)}
    try:
        box = atlas.card.box
    except ImportError:
        return bundle  # the names by outcome need no widgets
    bundle["application/vnd.jupyter.widget-view+json"] = {
        "version_major": 2,
        "version_minor": 0,
        "model_id": box.model_id,
    }
    return bundle


class Card:
    """The widgets: a search field, two menus, the names found, and the one chosen. What ipywidgets 7.7.1 and 8 share.

    Attributes:
        search: the text field.
        outcome: the menu of outcomes, `FILTERS`.
        kept: the menu of what backward keeps, `KEPT`.
        names: the list of names found.
        detail: the chosen operator, as HTML.
    """

    def __init__(self, atlas: Atlas):
        try:
            import ipywidgets as widgets
        except ImportError as error:
            raise ImportError(
                "the searchable table needs ipywidgets: pip install 'ipywidgets>=7.7,<9'. "
                "Without it use atlas.find(...) and atlas[name]."
            ) from error
        self._atlas = atlas
        plain = {"description_width": "68px"}
        self.search = widgets.Text(
            placeholder="part of a name, as reshape",
            description="Search:",
            style=plain,
            layout=widgets.Layout(width="250px"),
        )
        self.outcome = widgets.Dropdown(
            options=list(FILTERS), description="Returns:", style=plain, layout=widgets.Layout(width="290px")
        )
        self.kept = widgets.Dropdown(
            options=list(KEPT), description="Backward:", style=plain, layout=widgets.Layout(width="290px")
        )
        self.count = widgets.HTML(layout=widgets.Layout(width="250px"))
        # A list without a description has no name for a screen reader; one that is zero px wide takes no room from it.
        self.names = widgets.Select(
            options=[],
            description="Operators:",
            style={"description_width": "0px"},
            layout=widgets.Layout(width="250px", height="420px"),
        )
        self.detail = widgets.HTML(
            layout=widgets.Layout(width="430px", height="420px", overflow="auto", padding="0 0 0 8px")
        )
        self.box = widgets.VBox(
            [
                widgets.HBox([self.search, self.outcome]),
                widgets.HBox([self.count, self.kept]),
                widgets.HBox([self.names, self.detail]),
                widgets.HTML(f'<span style="font-size:12px">{LEGEND}</span>'),
            ],
            layout=widgets.Layout(border="1px solid #999", padding="8px", max_width=f"{MAX_WIDTH}px"),
        )
        for control in (self.search, self.outcome, self.kept):
            control.observe(self._refill, names="value")
        self.names.observe(self._choose, names="value")
        self._refill()

    def _refill(self, _: Any = None) -> None:
        found = self._atlas.find(self.search.value, **FILTERS[self.outcome.value], **KEPT[self.kept.value])
        chosen = self.names.value
        self.count.value = f'<span role="status">{len(found):,} of {len(self._atlas):,} names</span>'
        self.names.options = [(f"{_SIGNS[self._atlas[n].outputs]}  {n}", n) for n in found]
        if found:
            self.names.value = chosen if chosen in found and not self.search.value else found[0]
        self._choose()

    def _choose(self, _: Any = None) -> None:
        name = self.names.value
        if name is None:
            body = "<p>No name fits. Clear the search field, or choose “every operator”.</p>"
        else:
            body = entry_html(self._atlas[name])
        # ipywidgets gives an HTML widget lines of 28 px, made for labels and not for sentences.
        self.detail.value = f'<div style="line-height:1.45;white-space:normal;overflow-wrap:anywhere">{body}</div>'
