"""Null rewrite: every function of the standard library, numpy and transformers is taken apart and put together again.

    python tests/sweeps/null_rewrite.py [--json] [--packages stdlib numpy transformers] [--run]

Equality is checked of code, tables, names, constants, depth of the stack. With `--run` the standard library's own
tests run once as they are and once with every module, the tests included, rewritten on import; the outcomes must be
the same. transformers is run too: a small BERT, whose modules are rewritten, must give the same bits.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402

from firebrick.capture.bytecode.assemble import Instr, Layout, assemble, disassemble  # noqa: E402
from firebrick.capture.bytecode.instructions import decode  # noqa: E402

PACKAGES = ("stdlib", "numpy", "transformers")
TESTS = (
    "test_argparse test_ast test_bisect test_builtin test_class test_closure test_collections test_compare "
    "test_comprehensions test_contextlib test_coroutines test_dataclasses test_decorators test_defaultdict "
    "test_descr test_dict test_difflib test_dynamic test_enum test_exception_group test_exceptions "
    "test_except_star test_extcall test_flufl test_fractions test_fstring test_funcattrs test_functools "
    "test_generators test_genexps test_global test_grammar test_heapq test_inspect test_iter test_itertools "
    "test_keywordonlyarg test_lambda test_listcomps test_named_expressions test_opcodes test_operator "
    "test_patma test_pow test_positional_only_arg test_property test_raise test_scope test_set test_setcomps "
    "test_slice test_statistics test_string test_super test_syntax test_textwrap test_traceback test_tuple "
    "test_typechecks test_types test_unpack test_unpack_ex test_with test_yield_from test_zipimport"
).split()
SAME = (
    "co_argcount", "co_cellvars", "co_consts", "co_filename", "co_firstlineno", "co_flags", "co_freevars",
    "co_kwonlyargcount", "co_name", "co_names", "co_nlocals", "co_posonlyargcount", "co_qualname", "co_varnames",
)  # fmt: skip
OPTIMIZED = 1  # fast locals: class and module bodies are never rewritten by capture


def rewritten(code: types.CodeType) -> types.CodeType:
    """The code object after a null rewrite, and those in its constants."""
    consts = tuple(rewritten(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    if any(a is not b for a, b in zip(consts, code.co_consts, strict=True)):
        code = code.replace(co_consts=consts)
    return assemble(disassemble(code), Layout.of(code)) if code.co_flags & OPTIMIZED else code


def functions_in(code: types.CodeType):
    if code.co_flags & OPTIMIZED:
        yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from functions_in(constant)


def meaning(code: types.CodeType) -> list[tuple]:
    """Instructions with what tells them apart, operands and handlers resolved."""
    return [(i.opname, repr(i.argval), i.flag, i.position, i.handler) for i in decode(code)]


def differences(old: types.CodeType, new: types.CodeType) -> list[str]:
    found = [name for name in SAME if getattr(old, name) != getattr(new, name)]
    # Some of the compiler's jumps are longer than they need be: then the text and its tables are shorter now.
    if old.co_code != new.co_code or old.co_exceptiontable != new.co_exceptiontable:
        if meaning(old) != meaning(new):
            found.append("instructions")
    elif list(old.co_positions()) != list(new.co_positions()):
        found.append("positions")
    if new.co_stacksize > max(old.co_stacksize, 1):  # the compiler counts handlers of ranges that turned out empty
        found.append("co_stacksize")
    return found


def files_of(package: str) -> list[Path]:
    if package == "stdlib":
        root = Path(os.__file__).parent
        return sorted(p for p in root.rglob("*.py") if "site-packages" not in p.parts)
    spec = importlib.util.find_spec(package)
    return sorted(Path(spec.origin).parent.rglob("*.py")) if spec and spec.origin else []


def check(package: str, progress: Progress) -> dict:
    """Rewrite every function of a package without importing it."""
    files = files_of(package)
    task = progress.add_task(package, total=len(files))
    functions = instructions = 0
    seconds, bad = 0.0, []
    for path in files:
        progress.advance(task)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                top = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue  # files that test the compiler
        for code in functions_in(top):
            functions += 1
            start = time.perf_counter()
            items = disassemble(code)
            new = assemble(items, Layout.of(code))
            seconds += time.perf_counter() - start
            instructions += sum(isinstance(item, Instr) for item in items)
            different = differences(code, new)
            if different:
                bad.append(f"{path}:{code.co_firstlineno} {code.co_qualname}: {', '.join(different)}")
    per_hundred = 1e5 * seconds / max(instructions, 1)
    return {
        "package": package, "files": len(files), "functions": functions, "instructions": instructions,
        "ms_per_100_instructions": round(per_hundred, 3), "different": bad,
    }  # fmt: skip


# -- behaviour ----------------------------------------------------------------


class Rewriter(importlib.abc.MetaPathFinder):
    """Finds modules as usual, and rewrites what they are made of."""

    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader:
            return None
        if not name.startswith("firebrick"):
            spec.loader = RewritingLoader(spec.loader.name, spec.loader.path)
        return spec


class RewritingLoader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        return rewritten(super().get_code(fullname))


def run_inside(what: str, rewrite: bool) -> None:
    """The other process: run tests or a model, with or without the rewriter."""
    if rewrite:
        sys.meta_path.insert(0, Rewriter())
    if what == "bert":
        import torch
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64))
        out = model.eval()(torch.arange(8).reshape(1, 8)).last_hidden_state
        print("bits", hash(out.detach().numpy().tobytes().hex()))
        return
    for name in [n for n in sys.modules if n.partition(".")[0] in ("argparse", "contextlib", "dataclasses", "enum")]:
        if rewrite:  # loaded before the rewriter was there: patch their functions in place
            patch(sys.modules[name])
    import unittest

    unittest.main(module=f"test.{what}", argv=[what, "-q"], verbosity=0)


def patch(module: types.ModuleType) -> None:
    for value in list(vars(module).values()):
        members = list(vars(value).values()) if isinstance(value, type) and value.__module__ == module.__name__ else ()
        for function in (value, *members):
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                function.__code__ = rewritten(function.__code__)


def outcome(what: str, rewrite: bool) -> str:
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    args = [sys.executable, __file__, "--inside", what] + (["--rewrite"] if rewrite else [])
    try:
        done = subprocess.run(args, capture_output=True, text=True, timeout=300, env=env, check=False)
    except subprocess.TimeoutExpired:
        return "timeout"
    text = done.stdout + done.stderr
    ran = re.findall(r"Ran \d+ tests?|^(?:OK|FAILED).*|bits .*|^(?:FAIL|ERROR): .*", text, re.MULTILINE)
    return "; ".join(ran) or f"exit {done.returncode}: {text[-300:]}"


def behaviour(tests: list[str], progress: Progress) -> list[dict]:
    task = progress.add_task("behaviour", total=len(tests))
    found = []
    for name in tests:
        plain, changed = outcome(name, False), outcome(name, True)
        found.append({"test": name, "plain": plain, "rewritten": changed, "same": plain == changed})
        progress.advance(task)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", nargs="*", default=PACKAGES, choices=PACKAGES)
    parser.add_argument("--run", action="store_true", help="also compare behaviour, plain and rewritten")
    parser.add_argument("--tests", nargs="*", help="tests of the standard library to run")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--rewrite", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        run_inside(options.inside, options.rewrite)
        return 0
    console = Console(stderr=True)
    with Progress(console=console) as progress:
        checked = [check(package, progress) for package in options.packages]
        has_bert = importlib.util.find_spec("transformers") is not None
        names = options.tests if options.tests is not None else [*TESTS, *(["bert"] if has_bert else [])]
        ran = behaviour(names, progress) if options.run else []
    failed = any(row["different"] for row in checked) or not all(row["same"] for row in ran)
    if options.json:
        print(json.dumps({"python": sys.version.split()[0], "checked": checked, "behaviour": ran, "ok": not failed}))
        return int(failed)
    for row in checked:
        console.print(
            f"{row['package']}: {row['functions']:,} functions, {row['instructions']:,} instructions, "
            f"{row['ms_per_100_instructions']} ms per 100, {len(row['different'])} different"
        )
        for line in row["different"][:20]:
            console.print(f"  {line}", highlight=False)
    for row in ran:
        if not row["same"]:
            console.print(f"  {row['test']}: {row['plain']!r} became {row['rewritten']!r}", highlight=False)
    if ran:
        console.print(f"behaviour: {sum(row['same'] for row in ran)} of {len(ran)} the same")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
