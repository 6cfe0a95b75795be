"""The bytecode of CPython: opcodes, instructions, control flow, code objects."""
