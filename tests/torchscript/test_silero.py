"""The real silero-vad file through the TorchScript path."""

import importlib.util
import warnings
from pathlib import Path

import pytest
import torch

import firebrick

found = importlib.util.find_spec("silero_vad")
pytestmark = pytest.mark.skipif(found is None, reason="silero-vad is not installed")


def load():
    warnings.simplefilter("ignore", DeprecationWarning)
    return torch.jit.load(str(Path(found.origin).parent / "data" / "silero_vad.jit")).eval()


def audio(chunks, size):
    """A voice-like sound: a buzz with formants that comes and goes, on noise."""
    time = torch.arange(chunks * size) / 16000
    buzz = sum(torch.sin(2 * torch.pi * 120 * k * time) / k for k in range(1, 20))
    sound = buzz * (torch.sin(2 * torch.pi * 2 * time) > 0) + 0.05 * torch.randn(len(time))
    return (sound * 0.1).view(chunks, 1, size)


@pytest.mark.parametrize(("rate", "size"), [(16000, 512), (8000, 256)])
def test_plain_python_gives_the_same_probabilities(rate, size):
    torch.manual_seed(0)
    script = load()
    module = firebrick.torchscript.to_module(script)
    script.reset_states()
    module.reset_states()
    with torch.no_grad():
        for chunk in audio(6, size):
            assert torch.equal(module(chunk, rate), script(chunk, rate))
    with pytest.raises(ValueError, match="too short|number of samples"):
        module(torch.zeros(1, 100), rate)


@pytest.mark.compiler
def test_compiled_gives_the_same_probabilities():
    torch.manual_seed(0)
    script = load()
    module = firebrick.torchscript.to_module(script)
    compiled = firebrick.compile(module)
    script.reset_states()
    module.reset_states()
    before = firebrick.graphs_compiled()
    with torch.no_grad():
        for chunk in audio(6, 512):
            torch.testing.assert_close(compiled(chunk, 16000), script(chunk, 16000), rtol=1e-4, atol=1e-5)
    assert firebrick.graphs_compiled() > before
