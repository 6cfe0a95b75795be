"""A profiler of torch that runs while something is compiled shows the stages; none is shown for a warm call."""

import torch

import firebrick


def test_stages_are_events_of_the_compiling_call_alone():
    firebrick.reset()
    fn, x = firebrick.compile(lambda x: torch.sin(x) * 3 + 1), torch.randn(7)
    seen = []
    for _ in range(2):
        with torch.no_grad(), torch.profiler.profile() as profile:
            fn(x)
        seen.append({event.key for event in profile.key_averages() if event.key.startswith("firebrick: ")})
    assert {"firebrick: capture", "firebrick: key"} <= seen[0]
    assert not seen[1]
