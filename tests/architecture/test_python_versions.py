"""What one version of Python executes in another way than the one that runs the tests."""

import ast
import builtins
from pathlib import Path

import manyfit

COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def confused_names(text):
    """Names of builtins that a comprehension of a function uses as a variable, and the function as a builtin."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = [each for each in ast.walk(function) if isinstance(each, COMPREHENSIONS)]
        bound = {
            name.id
            for each in inside
            for part in each.generators
            for name in ast.walk(part.target)
            if isinstance(name, ast.Name)
        }
        called = {
            node.func.id
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        yield from ((function.name, name) for name in sorted(bound & called & set(dir(builtins))))


def test_no_comprehension_hides_a_builtin_that_its_function_calls():
    """Some releases of Python 3.12 raise UnboundLocalError then."""
    package = Path(manyfit.__file__).parent
    found = {str(path): list(confused_names(path.read_text())) for path in package.rglob("*.py")}
    assert not {path: names for path, names in found.items() if names}
    bad = "def f(a, b):\n    c = {id: r for id, r in a}\n    return {id(each) for each in b}, c\n"
    assert list(confused_names(bad)) == [("f", "id")]
