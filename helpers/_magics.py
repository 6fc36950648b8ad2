"""How does a whole cell get explained? The cell magics ``%%explain_inplace`` and ``%%guard_saved_tensors``.

Nothing is imported here that a reader without the magics would wait for.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

_NAMES = ("explain_inplace", "guard_saved_tensors")


def load_ipython_extension(shell: Any) -> None:
    """Gives an IPython shell the two magics."""
    for name in _NAMES:
        shell.register_magic_function(_magic(shell, name), magic_kind="cell", magic_name=name)


def register_if_in_ipython() -> None:
    """The same, where the running program is IPython; otherwise nothing is imported."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    if shell is not None:
        load_ipython_extension(shell)


def _magic(shell: Any, name: str) -> Any:
    def run(line: str, cell: str) -> Any:
        __tracebackhide__ = True  # the reader's frames tell the story
        from . import display, inplace

        args, kwargs = _arguments(line, shell.user_ns, name)
        block = getattr(inplace, name)(*args, **kwargs)
        run_body = _compiled(shell, f"%%{name} {line}".rstrip(), cell)
        with block as report:
            value = run_body()
        if isinstance(report, inplace.Report) and report.text:
            display.show(report)
        return value

    run.__name__ = name
    run.__doc__ = (
        f"Runs the cell inside ``{name}(...)``; what stands behind %%{name} stands between the parentheses.\n\n"
        "The cell's last value is shown and its names are kept, as without the magic."
    )
    return run


def _arguments(line: str, namespace: dict[str, Any], name: str) -> tuple[tuple, dict[str, Any]]:
    """What ``line`` says, as the arguments of a call."""
    try:
        code = compile(f"_arguments_of_the_magic({line})", f"<%%{name}>", "eval")
    except SyntaxError:
        from IPython.core.error import UsageError  # shown without a traceback

        raise UsageError(
            f"%%{name} takes what {name}() takes between its parentheses, for example `%%{name} "
            f"{'model, ' if name == 'explain_inplace' else ''}check_values=True`; got {line!r}"
        ) from None
    return eval(code, namespace, {"_arguments_of_the_magic": lambda *args, **kwargs: (args, kwargs)})


def _cell_number(shell: Any) -> int:
    """The number of the cell that is running; the shell may have counted on by now, so the code itself is asked."""
    numbers = getattr(shell.compile, "_filename_map", {})
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in numbers:
            return numbers[frame.f_code.co_filename]
        frame = frame.f_back
    return shell.execution_count


def _compiled(shell: Any, head: str, cell: str) -> Any:
    """The cell's body as a function; its lines are numbered from the line of the magic, which is the cell's first."""
    blank = len(cell) - len(cell.lstrip("\n"))  # IPython drops the empty lines that a cell begins with
    body = shell.transform_cell(cell)
    source = "\n".join([head, *[""] * blank, body])
    number = _cell_number(shell)
    try:
        name = shell.compile.cache(source, number, raw_code=f"{head}\n{cell}")
    except TypeError:  # IPython 7
        name = shell.compile.cache(source, number)
    tree = ast.parse(body, name, "exec")
    ast.increment_lineno(tree, blank + 1)
    tree = shell.transform_ast(tree)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = compile(ast.Expression(tree.body.pop().value), name, "eval")
    code = compile(tree, name, "exec")
    quiet = body.rstrip().endswith(";")  # as at the end of any cell

    def run() -> Any:
        __tracebackhide__ = True
        exec(code, shell.user_ns)
        value = eval(last, shell.user_ns) if last is not None else None
        return None if quiet else value

    return run
