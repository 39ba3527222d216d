"""Prove that Python files differ from those of a revision in words alone.

    python tools/words_only.py REVISION

All tracked files that changed since REVISION are compared: the syntax tree without docstrings, and
the comments that tools read (noqa, type: ignore, pragma, fmt). Status 1, with the names, where
anything else differs.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_READ_BY_TOOLS: Final = re.compile(r"noqa|type: ?ignore|pragma|fmt: ?(on|off|skip)")
_HAS_DOCSTRING: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_of(source: str) -> tuple[str, list[tuple[str, str]]]:
    """Return all of *source* that isn't words: its tree, and each comment for tools with its code.

    Raises:
        SyntaxError: It is no Python.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _HAS_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        if isinstance(node, _HAS_DOCSTRING) and not node.body:
            node.body = [ast.Expr(ast.Constant(...))]
    return ast.dump(tree), list(_pragmas(source))


def _pragmas(source: str) -> Iterator[tuple[str, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (found := _READ_BY_TOOLS.search(token.string)):
            words = re.split(r" [- ]+ |  ", token.string[found.start() :])[0].strip()
            yield token.line[: token.start[1]].strip(), words


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


def changed(revision: str) -> list[str]:
    """Return the Python files in which more than words differs from *revision*."""
    names = _git("diff", "--name-only", "--no-renames", "-z", revision, "--", "*.py")
    return [name for name in filter(None, names.split("\0")) if not _is_same(revision, name)]


def _is_same(revision: str, name: str) -> bool:
    path = Path(name)
    if not path.is_file() or not _git("ls-tree", "--name-only", revision, "--", name):
        return False
    return code_of(_git("show", f"{revision}:{name}")) == code_of(path.read_text("utf-8"))


if __name__ == "__main__":
    found = changed(sys.argv[1])
    print("\n".join(found) or "words alone")
    sys.exit(bool(found))
