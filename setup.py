"""Builds the one C extension; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = sorted(str(p) for p in Path("src/firebrick/native").glob("*.c"))

setup(
    ext_modules=[
        Extension(
            "firebrick._native",
            sources=SOURCES,
            depends=sorted(str(p) for p in Path("src/firebrick/native").glob("*.h")),
            extra_compile_args=[
                "-O2",
                "-std=c11",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
                "-Wno-cast-function-type",
            ],
            libraries=["dl"],
        )
    ]
)
