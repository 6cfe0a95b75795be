"""A process that compiles kernels of Triton text, one a line of its input; run by path, it imports only Triton.

    {"path": file, "name": function, "signature": {...}, "warps": n, "arch": 90, "debug": bool, "maps": bool}
    -> {"cubin": base64, "shared": bytes, "threads": n} or {"error": text}

It ends when nobody has asked for a minute, or when the process that started it is gone.
"""

import base64
import importlib.util
import json
import os
import select
import sys
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_IDLE = 60
_MAPS = 256, 128
"""Bytes for a program's descriptors, and of whose multiples they begin."""


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what compilers print is no answer
    with tempfile.TemporaryDirectory(prefix="firebrick-triton-") as folder:
        triton.knobs.cache.dir = folder
        while select.select([sys.stdin], [], [], _IDLE)[0]:
            line = sys.stdin.readline()
            if not line:
                break
            try:
                answer = _compiled(json.loads(line))
            except Exception as error:  # noqa: BLE001 - the process that asked tells it
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")


def _compiled(request: dict[str, Any]) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("kernels", request["path"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = request["signature"]
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind[0] == "*"}
    source = ASTSource(fn=getattr(module, request["name"]), signature=signature, constexprs={}, attrs=aligned)
    options = {
        "num_warps": request["warps"], "debug": request["debug"], "sanitize_overflow": False,
        "enable_fp_fusion": False,
    }  # fmt: skip
    kernel = triton.compile(source, target=GPUTarget("cuda", request["arch"], 32), options=options)
    meta = kernel.metadata
    room = _MAPS if request["maps"] else (0, 1)
    asked = getattr(meta, "global_scratch_size", 0), getattr(meta, "global_scratch_align", 1)
    if any(a > b for a, b in zip(asked, room, strict=True)) or getattr(meta, "num_ctas", 1) != 1:
        return {"error": "the kernel asks for memory of its own"}
    text = base64.b64encode(kernel.asm["cubin"]).decode()
    return {"cubin": text, "shared": meta.shared, "threads": 32 * meta.num_warps}


if __name__ == "__main__":
    main()
