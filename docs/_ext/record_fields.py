"""Lists the fields of named tuples, with the comments that stand behind them in the source.

A record's fields are described where they are declared, ``epsilon: float  # what it costs``.
Autodoc does not read such comments, and would print "Alias for field number 0" for each.
"""

import ast
import inspect
import io
import re
import tokenize


def _comments(lines):
    """The comment that begins on each source line and goes on alone on the next ones."""
    comments, begun = {}, 0
    for token in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
        if token.type == tokenize.COMMENT:
            row, text = token.start[0], token.string.lstrip("# ")
            if token.line.strip() == token.string and begun:
                comments[begun] += " " + text
            else:
                comments[row], begun = text, row
        elif token.type not in (tokenize.NL, tokenize.NEWLINE):
            begun = 0
    return comments


def _fields(record):
    """(name, type, description) of every field, in order; the description may be empty."""
    source = inspect.getsource(record)
    body = ast.parse(source).body[0].body
    comments = _comments(source.splitlines(keepends=True))
    for place, statement in enumerate(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = comments.get(statement.end_lineno, "")
            below = body[place + 1] if place + 1 < len(body) else None
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                text = " ".join(str(below.value.value).split())
            yield statement.target.id, ast.unparse(statement.annotation), text


def _is_record(thing):
    return inspect.isclass(thing) and issubclass(thing, tuple) and hasattr(thing, "_fields")


def add_fields(app, what, name, thing, options, lines):
    """Replaces what ``namedtuple`` wrote for a docstring, and appends the fields."""
    if not _is_record(thing):
        return
    if lines and lines[0].startswith(f"{thing.__name__}("):
        lines.clear()
    if any(line.startswith((":param", "Args:")) for line in lines):
        return
    fields = [field for field in _fields(thing) if not field[0].startswith("_")]
    lines += ["", ":Fields:", ""]
    for field, annotation, text in fields:
        text = re.sub(r"(?<!`)`(\w[\w.]*)`(?!`)", r"``\1``", text)
        lines.append(f"   - ``{field}`` (``{annotation}``)" + (f": {text}" if text else ""))
    lines.append("")


def skip_alias(app, what, name, thing, skip, options):
    """No entry of its own for a field."""
    return True if type(thing).__name__ == "_tuplegetter" else skip


def setup(app):
    """Connects to autodoc, after napoleon has turned sections into fields."""
    app.connect("autodoc-process-docstring", add_fields, priority=900)
    app.connect("autodoc-skip-member", skip_alias)
    return {"parallel_read_safe": True}
