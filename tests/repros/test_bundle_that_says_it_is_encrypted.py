"""A changed bit in a saved file that zip takes for "this member is encrypted" raised RuntimeError, not CacheError."""

import pytest
import torch

import firebrick
from firebrick.errors import CacheError

pytestmark = pytest.mark.compiler


def test_a_file_that_says_it_is_encrypted_is_corrupt(tmp_path):
    run = firebrick.compile(torch.nn.Linear(4, 4).eval())
    with torch.no_grad():
        run(torch.ones(2, 4))
        firebrick.save(run, tmp_path / "bundle.fb")
    data = bytearray((tmp_path / "bundle.fb").read_bytes())
    for head, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        data[data.find(head, data.find(b"manifest.json") - 64) + flags] |= 1
    (tmp_path / "bundle.fb").write_bytes(data)
    with pytest.raises(CacheError):
        firebrick.load(tmp_path / "bundle.fb")
