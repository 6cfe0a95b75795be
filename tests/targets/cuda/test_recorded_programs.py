"""Programs that record themselves and are replayed, on a driver that stands in for a card."""

from ctypes import c_float, c_void_p

import pytest
import torch
from stand_in import executable, module, slot

from firebrick import _native
from firebrick.report import recorder as stats
from firebrick.runtime import cuda_graphs
from firebrick.runtime.cuda_graphs import CALLS, Recorder, recorder_of
from firebrick.runtime.load import resolve


@torch.library.custom_op("fbtest::library", mutates_args=("to",))
def library(to: torch.Tensor, source: torch.Tensor) -> None:
    assert library.driver.fake_library(to.data_ptr(), source.data_ptr()) == 0


class Recording:
    """Captures by the driver alone."""

    def __init__(self, driver, broken=False, session=None):
        driver.fake_begin.restype = driver.fake_end.restype = c_void_p
        driver.fake_library.argtypes, driver.fake_took.argtypes = [c_void_p, c_void_p], [c_float]
        library.driver = driver
        self.driver, self.broken, self.session, self.said, self.ends, self.shared = driver, broken, session, [], [], []

    def begin(self, device, stream):
        self.driver.fake_begin()
        return self.session or object()

    def end(self, session, complete):
        graph = self.driver.fake_end()
        self.ends.append(complete)
        if self.broken:
            raise RuntimeError("the capture broke")
        if self.session is not None:
            session.graph = graph
            return graph, graph
        return graph, 0

    def told(self, what, error, steps, graph, shared):
        self.shared.append(shared)
        self.said.append((what, str(error)) if error is not None else what)


CHAIN = {
    "slots": [slot("input", [0]), slot("arena", [0]), slot("fresh", [0])],
    "registers": [["s", 0, 0], ["+", [0], 3], ["/", [1], 4], ["*", [0], 4]],
    "views": [[2, [[0]], [1], 0, None]],
    "arena": [[3], "cpu"],
    "steps": [
        ["kernel", "k", [0, 1], [[0]], "cuda:0", [[2]]],
        ["alloc", [2]],
        ["kernel", "k", [1, 2], [[0]], "cuda:0", [[2]]],
    ],
    "outputs": [["t", 0]],
}
"""x + 1 in the arena, and one more: a result."""


def call(*views):
    args = [["t", view] for view in views]
    return ["call", "fbtest::library", args, ["T"] * len(args), len(args), [], [], True, False]


BETWEEN = {
    "slots": [slot("input", 4), slot("fresh", 4), slot("fresh", 4)],
    "views": [[i, [4], [1], 0, None] for i in range(3)],
    "steps": [["alloc", [1, 2]], call(1, 0), ["kernel", "k", [1, 2], [4], "cuda:0", [1]]],
    "outputs": [["t", 2], ["t", 1]],
}
"""A library call that reads the input and makes a result, which a kernel reads: x + 1, x + 2."""


@pytest.fixture
def recording(driver, log):
    made = Recording(driver)
    driver.fake_took(0)
    return made


def words(log):
    """The first words of what the driver was asked since the last call of this."""
    return [" ".join(line.split()[:2]) if line.startswith(("set", "launch")) else line for line in log()]


def asked(driver, log, run, *args):
    driver.fake_clear()
    made = run(*args)
    return made, words(log)


def test_later_calls_are_one_launch_of_a_graph(driver, log, recording):
    run = executable(CHAIN, recording, True, k=module("add"))
    xs = [torch.randn(6) for _ in range(6)]
    made = [asked(driver, log, run, x) for x in xs]
    for x, ((y,), _) in zip(xs, made, strict=True):
        torch.testing.assert_close(y, x + 2)
    assert made[0][1] == ["launch add"] * 2
    assert made[-1][1] == ["set kernel", "set kernel", "graph"]
    assert recording.said == ["recorded"] and recording.ends == [1]


def test_addresses_that_stay_are_not_set_again(driver, log, recording):
    run = executable(CHAIN, recording, True, k=module("add"))
    x = torch.randn(6)
    kept = [run(x)[0] for _ in range(5)]
    (y,), seen = asked(driver, log, run, x)
    assert seen == ["set kernel", "graph"]
    for made in (*kept, y):
        torch.testing.assert_close(made, x + 2)


def test_an_input_that_moves_after_all_is_recorded_anew(driver, log, recording):
    run = executable(CHAIN, recording, True, k=module("add"))
    x = torch.randn(6)
    for _ in range(4):
        run(x)
    for _ in range(6):
        other = torch.randn(6)
        torch.testing.assert_close(run(other)[0], other + 2)
    assert recording.said == ["recorded"] * 2
    assert asked(driver, log, run, torch.randn(6))[1] == ["set kernel", "set kernel", "graph"]


def test_what_library_calls_touch_is_copied(driver, log, recording):
    run = executable(BETWEEN, recording, True, k=module("add"))
    xs = [torch.randn(4) for _ in range(7)]
    made = [run(x) for x in xs]
    for x, (more, one) in zip(xs, made, strict=True):
        torch.testing.assert_close(one, x + 1)
        torch.testing.assert_close(more, x + 2)
    assert asked(driver, log, run, torch.randn(4))[1] == ["set copy", "set kernel", "set copy", "graph"]


def test_odd_places_are_copied(driver, log, recording):
    run = executable(CHAIN, recording, True, k=module("add"))
    for n in (0, 1, 0, 1, 1, 0, 1, 1, 1):
        x = torch.randn(7)[n : 6 + n]
        torch.testing.assert_close(run(x)[0], x + 2)
    assert asked(driver, log, run, torch.randn(7)[1:])[1] == ["set copy", "set kernel", "graph"]


def test_a_graph_is_kept_where_it_is_faster(driver, log, recording):
    run = executable(CHAIN, recording, k=module("add"))
    for _ in range(12):
        x = torch.randn(6)
        torch.testing.assert_close(run(x)[0], x + 2)
    assert recording.said[0] == "recorded" and recording.said[1] in ("kept", "slower than the steps")
    assert len(recording.said) == 2


def test_a_graph_that_takes_longer_is_dropped(driver, log, recording):
    run = executable(CHAIN, recording, k=module("add"))
    for _ in range(20):
        x = torch.randn(6)
        torch.testing.assert_close(run(x)[0], x + 2)
        if recording.said:
            driver.fake_took(10_000)
    assert recording.said == ["recorded", "slower than the steps"]
    assert asked(driver, log, run, x)[1] == ["launch add"] * 2


def test_where_the_gpu_takes_longer_nothing_is_recorded(driver, log, recording):
    driver.fake_took(10_000)
    run = executable(CHAIN, recording, k=module("add"))
    for _ in range(12):
        run(torch.randn(6))
    assert recording.said == ["the GPU takes longer than the host"]


def test_a_users_capture_gets_the_launches(driver, log, recording):
    run = executable(CHAIN, recording, True, k=module("add"))
    x = torch.randn(6)
    for _ in range(4):
        run(x)
    driver.fake_begin()
    (y,), seen = asked(driver, log, run, x)
    graph = driver.fake_end()
    assert seen == ["launch add"] * 2
    assert graph and y.shape == x.shape


SIZED = {
    **BETWEEN,
    "slots": [slot("input", [0]), slot("fresh", [0]), slot("fresh", [0])],
    "registers": CHAIN["registers"],
    "views": [[i, [[0]], [1], 0, None] for i in range(3)],
    "steps": [*BETWEEN["steps"][:2], ["kernel", "k", [1, 2], [4], "cuda:0", [1]]],
}
"""A library call of as many elements as there are, of which four are looked at."""


def test_library_calls_of_many_sizes_have_graphs_of_their_own(driver, log, recording):
    """The first 64 keep theirs, until they are not called for long."""
    run = executable(SIZED, recording, True, k=module("add"))

    def called(*sizes):
        for n in sizes:
            x = torch.randn(n)
            made, seen = asked(driver, log, run, x)
            torch.testing.assert_close(made[0][:4], x[:4] + 2)
        return seen

    for _ in range(4):
        called(*range(4, 104))
    assert recording.said == ["recorded"] * 64 and not any(recording.shared)
    assert called(10)[-1] == "graph" and called(103)[-1] != "graph"
    called(*[20] * 260)
    called(103, 103)
    assert called(103)[-1] == "graph" and called(21)[-1] == "graph"


def test_recordings_without_end_stop(driver, log, recording):
    run = executable(SIZED, recording, True, k=module("add"))
    for n in range(4, 204):
        for _ in range(5):
            torch.testing.assert_close(run(torch.zeros(n))[0][:4], torch.full((4,), 2.0))
    assert len(recording.said) == 128


# ---- buckets: a recording for many sizes


@pytest.mark.parametrize("forced", [True, False])
def test_many_sizes_share_few_recordings(driver, log, recording, forced):
    run = executable(CHAIN, recording, forced, k=module("add"))
    for turn in range(3):
        for n in torch.randperm(100).add(1).tolist():
            x = torch.randn(n)
            (y,), seen = asked(driver, log, run, x)
            torch.testing.assert_close(y, x + 2)
        if turn and forced:
            assert seen == ["set kernel", "set kernel", "graph"]
    # Four of the first sizes alone, and five that the others are rounded up to: 1, 4, 16, 64, 128.
    assert recording.said.count("recorded") <= 9


def test_few_sizes_have_recordings_of_their_own(driver, log, recording):
    run = executable(CHAIN, recording, True, k=module("add"))
    kept = []
    for n in (*[5, 6, 7, 8] * 3, 30, 20, 30):
        x = torch.randn(n)
        kept.append((run(x)[0], x))
    for y, x in kept:
        torch.testing.assert_close(y, x + 2)
    assert recording.shared == [0, 0, 0, 0, 1]
    x = torch.randn(6)
    assert asked(driver, log, run, x)[1][-1] == "graph"
    same = [run(torch.randn(25)), asked(driver, log, run, torch.randn(25))]
    assert same[1][1][-1] == "graph"


def bucketed(table, recording, *sizes, count=1, **modules):
    """An executable that has had calls of four sizes, then one of each of `sizes`."""
    run = executable(table, recording, True, **modules)
    for n in (101, 102, 103, 104, *sizes):
        run(*[torch.randn(n) for _ in range(count)])
    return run


def test_a_size_that_comes_again_has_its_numbers_set_once(driver, log, recording):
    run = bucketed(CHAIN, recording, 20, 30, 31, k=module("add"))
    x, kept = torch.randn(25), []
    kept += [run(x) for _ in range(3)]
    (y,), seen = asked(driver, log, run, x)
    assert seen == ["set kernel", "graph"]  # where its result is
    torch.testing.assert_close(y, x + 2)


def test_nothing_to_do_and_too_little_room_are_done_by_steps(driver, log, recording):
    run = bucketed(CHAIN, recording, 9, 10, 11, k=module("add"))
    (y,), seen = asked(driver, log, run, torch.randn(0))
    assert y.shape == (0,) and "graph" not in seen
    # A temporary of 20 - n elements takes more memory where n is small: the graph's is for 16.
    table = {
        **CHAIN,
        "slots": [slot("input", [0]), slot("fresh", [5]), slot("fresh", [0])],
        "registers": [*CHAIN["registers"], ["*", [0], -1], ["+", [4], 20]],
        "steps": [["alloc", [1, 2]], *(["kernel", "k", [i, i + 1], [3], "cuda:0", [1]] for i in (0, 1))],
    }
    run = executable(table, recording, True, k=module("add"))
    seen = []
    for n in (3, 4, 5, 6, *[7, 8, 16] * 3):
        x = torch.randn(n)
        (y,), said = asked(driver, log, run, x)
        torch.testing.assert_close(y[:3], x[:3] + 2)
        seen.append((n, said[-1] == "graph"))
    assert set(seen[-3:]) == {(7, False), (8, False), (16, True)}


def test_library_calls_of_one_size_are_part_of_a_bucket(driver, log, recording):
    """The call reads four elements of an input of any length, a copy of which the graph has."""
    table = {
        **CHAIN,
        "slots": [slot("input", [0]), slot("fresh", 4), slot("fresh", [0])],
        "views": [[0, [4], [1], 0, None], [1, [4], [1], 0, None], [2, [[0]], [1], 0, None]],
        "steps": [["alloc", [1, 2]], call(1, 0), ["kernel", "k", [0, 2], [[0]], "cuda:0", [[2]]]],
        "outputs": [["t", 1], ["t", 2]],
    }
    run = executable(table, recording, True, k=module("add"))
    for n in (4, 5, 6, 7, *range(8, 60)):
        x = torch.randn(n)
        (few, more), seen = asked(driver, log, run, x)
        torch.testing.assert_close(few, x[:4] + 1)
        torch.testing.assert_close(more, x + 1)
    assert seen == ["set copy", "set kernel", "set copy", "graph"]
    assert recording.said == ["recorded"] * 2 and all(recording.shared)


def test_a_cache_that_grows_where_it_lies(driver, log, recording):
    run, cache = executable(CHAIN, recording, True, k=module("add")), torch.randn(200)
    for n in range(1, 200):
        torch.testing.assert_close(run(cache[:n])[0], cache[:n] + 2)
    assert recording.said == ["recorded"] * 4


def test_two_sizes_at_once(driver, log, recording):
    """x + 1 and y + 2, of lengths of their own; the temporary is as long as both."""
    table = {
        "slots": [slot("input", [0]), slot("input", [1]), slot("fresh", [2]), slot("fresh", [0]), slot("fresh", [1])],
        "registers": [
            ["s", 0, 0],
            ["s", 1, 0],
            ["+", [0], [1]],
            ["+", [0], 3],
            ["/", [3], 4],
            ["+", [1], 3],
            ["/", [5], 4],
        ],
        "views": [[3, [[0]], [1], 0, None], [4, [[1]], [1], 0, None]],
        "steps": [
            ["alloc", [2, 3, 4]],
            ["kernel", "k", [0, 3], [[0]], "cuda:0", [[4]]],
            ["kernel", "k", [1, 2], [[1]], "cuda:0", [[6]]],
            ["kernel", "k", [2, 4], [[1]], "cuda:0", [[6]]],
        ],
        "outputs": [["t", 0], ["t", 1]],
    }
    run = executable(table, recording, True, k=module("add"))
    for turn in range(2):
        for n in torch.randperm(60).add(1).tolist():
            x, y = torch.randn(n), torch.randn(61 - n)
            a, b = run(x, y)
            torch.testing.assert_close(a, x + 1)
            torch.testing.assert_close(b, y + 2)
    assert len(recording.said) <= 16


def test_what_is_written_in_place_is_written_where_it_lies(driver, log, recording):
    table = {
        "slots": [slot("input", 4)],
        "steps": [["kernel", "k", [0], [], "cuda:0", [1]]],
        "views": [[0, [4], [1], 0, None]],
    }
    run = executable({**table, "outputs": [], "mutated": [0]}, recording, True, k=module("twice"))
    for _ in range(5):
        x = torch.arange(4.0)
        version = x._version
        run(x)
        assert x.tolist() == [0, 2, 4, 6] and x._version > version
    assert asked(driver, log, run, torch.ones(4))[1][-1] == "graph"
    calls = {**table, "steps": [call(0, 0)], "outputs": [], "mutated": [0]}
    calls["steps"].append(["kernel", "k", [0], [], "cuda:0", [1]])
    run = executable(calls, recording, True, k=module("twice"))
    for _ in range(5):
        x = torch.arange(4.0)
        run(x)
        assert x.tolist() == [2, 4, 6, 8]
    assert recording.said[-1] == ("not recordable", "a library call writes to an input")


def test_a_constant_that_moved_is_recorded_anew(driver, log, recording):
    table = {**CHAIN, "slots": [slot("input", [0]), slot("const", 4), *CHAIN["slots"][1:]]}
    table["views"] = [[3, [[0]], [1], 0, None]]
    table["steps"] = [
        ["kernel", "k", [1, 2], [4], "cuda:0", [1]],
        ["alloc", [3]],
        ["kernel", "k", [2, 3], [[0]], "cuda:0", [[2]]],
    ]
    weight = torch.randn(4)
    run = executable(table, recording, True, [weight], k=module("add"))
    x = torch.randn(4)
    for _ in range(4):
        torch.testing.assert_close(run(x)[0], weight + 2)
    weight.data = torch.randn(4)
    for _ in range(4):
        torch.testing.assert_close(run(x)[0], weight + 2)
    assert recording.said == ["recorded"] * 2


def test_a_capture_that_breaks_leaves_the_steps(driver, log):
    recording = Recording(driver, broken=True)
    run = executable(CHAIN, recording, True, k=module("add"))
    for _ in range(5):
        x = torch.randn(6)
        torch.testing.assert_close(run(x)[0], x + 2)
    assert recording.said == [("not recordable", "the capture broke")]
    assert recording.ends == [1]


def test_a_replay_that_fails_is_an_error_of_the_steps(driver, log, recording):
    run = executable(CHAIN, recording, True, k=module("add"))
    x = torch.randn(6)
    for _ in range(4):
        run(x)
    driver.fake_fail(2)
    with pytest.raises(RuntimeError, match=r"out of memory \(launch\)"):
        run(x)
    driver.fake_fail(0)
    torch.testing.assert_close(run(x)[0], x + 2)
    assert recording.said[-1] == ("replay failed", "CUDA error: out of memory (graph)")


def test_random_numbers_are_replayed_by_torch(driver, log):
    class Session:
        graph, replays = None, 0

        def replay(self):
            Session.replays += 1
            driver.cuGraphLaunch(c_void_p(self.graph), None)

    run = executable(CHAIN, Recording(driver, session=Session()), True, k=module("add"))
    for _ in range(5):
        x = torch.randn(6)
        torch.testing.assert_close(run(x)[0], x + 2)
    assert Session.replays == 4
    del run
    assert "destroy" not in words(log)  # the graph is torch's


# ---- which programs, and torch's part of a capture


def table(*calls, device="cuda:0", steps=()):
    rows = [["call", op, args, ["T"] * len(args), len(args), [], [], False, True] for op, args in calls]
    return {
        "slots": [["input", "f32", [4], [1], 0, device]],
        "views": [[0, [4], [1], 0, None]],
        "steps": [["kernel", "k", [0], [], device, [1]], *rows, *steps],
    }


FLASH = "aten::_scaled_dot_product_flash_attention"


@pytest.mark.parametrize(
    ("program", "random"),
    [
        (table(("aten::mm.out", [["t", 0]] * 3)), False),
        (table(("aten::rand", [["l", []]])), True),
        (table((FLASH, [["t", 0]] * 3 + [["f", 0.5]])), True),
        (table((FLASH, [["t", 0]] * 3 + [["f", 0.0]])), False),
        (table(("aten::grid_sampler_2d", [["t", 0]] * 2)), False),
        (table(("aten::nonzero", [["t", 0]])), None),
        (table(device="cpu"), None),
        (table(steps=[["check", 0, 1, 0, "IndexError", "", None]]), None),
        ({**table(), "slots": [*table()["slots"], ["input", "f32", [4], [1], 0, "cpu"]]}, None),
        ({**table(), "slots": [*table()["slots"], ["input", "f32", [4], [1], 0, "cuda:1"]]}, None),
        ({**table(), "slots": [*table()["slots"], ["const", "f32", [4], [1], 0, "cpu"]]}, None),
        ({**table(), "slots": [*table()["slots"], ["const", "f32", [4], [1], 0, "cpu"]], "sources": [0]}, False),
    ],
)
def test_which_programs_are_recorded(program, random):
    made = recorder_of("g", program, resolve, True)
    assert (made and made.random) == random
    assert recorder_of("g", program, resolve, False) is None  # too few steps


def test_stats_say_why_a_program_is_never_recorded():
    stats.reset()
    recorder_of("g", table(("aten::nonzero", [["t", 0]])), resolve, True)
    assert stats.stats()["reasons"]["CUDA graphs"] == {"g: never recorded: calls aten::nonzero": 1}


def test_calls_that_are_recorded_exist_and_return_no_views():
    for name in CALLS:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if not any(str(a.type) == "Tensor" for a in op._schema.arguments):
                continue  # of lists and numbers
            assert not op.is_view
            assert not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*op.tags}


class Graph:
    broken = False

    def __init__(self, keep):
        assert keep

    def capture_begin(self, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.place = pool
        in_turn.append("begin")

    def replay(self):
        in_turn.append("replay")

    def capture_end(self):
        if Graph.broken:
            raise RuntimeError("invalidated")

    def pool(self):
        return self.place

    def raw_cuda_graph(self):
        return 7

    def raw_cuda_graph_exec(self):
        return 8

    def instantiate(self):
        pass


released, in_turn = [], []


@pytest.fixture
def torch_cuda(monkeypatch, driver, log):
    pools, ended = iter(range(1, 99)), []
    for name in ("_sides", "_drew"):
        monkeypatch.setattr(cuda_graphs, name, {})
    monkeypatch.setattr(_native, "cuda_stream", lambda device: 99)

    class Stream:
        device = torch.device("cuda:0")
        cuda_stream = 99

        def __init__(self, address, device):
            assert address == 99 or device is None
            self.name = "ours" if address == 99 else address

        def wait_stream(self, other):
            in_turn.append((self.name, other.name))

    streams = [Stream("users", None)]

    for name, value in {
        "ExternalStream": Stream,
        "CUDAGraph": Graph,
        "current_stream": lambda device: streams[-1],
        "set_stream": streams.append,
        "graph_pool_handle": lambda: next(pools),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)

    class Generator:
        clone_state = staticmethod(lambda: "fresh")
        graphsafe_set_state = staticmethod(ended.append)

    monkeypatch.setattr(torch.cuda, "default_generators", (Generator,))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *args: ended.append(args), raising=False)
    for name in ("_cuda_beginAllocateCurrentThreadToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda *args, name=name: released.append((name, *args)), raising=False)
    released.clear()
    in_turn.clear()
    return streams, ended


def test_captures_of_a_stream_share_memory_while_one_lives(torch_cuda):
    streams, _ = torch_cuda
    recorders = [Recorder("a", False), Recorder("b", True)]
    sessions = [r.begin(0, 5) for r in recorders[:1]]
    assert recorders[0].end(sessions[0], 1) == (7, 0)
    sessions.append(recorders[1].begin(0, 5))
    assert recorders[1].end(sessions[1], 1) == (7, 8)
    assert streams[-1] is streams[0]
    assert [s.pool for s in sessions] == [1, 1]
    del sessions
    session = recorders[0].begin(0, 5)
    assert session.pool == 2
    recorders[0].end(session, 1)


def test_a_capture_that_breaks_gives_everything_back(torch_cuda, monkeypatch):
    streams, ended = torch_cuda
    monkeypatch.setattr(Graph, "broken", True)
    recorder = Recorder("a", True)
    for _ in range(2):
        session = recorder.begin(0, 5)
        with pytest.raises(RuntimeError, match="invalidated"):
            recorder.end(session, 0)
    assert streams[-1] is streams[0] and ended == [(0, 1), "fresh", (0, 2), "fresh"]


def test_programs_without_random_numbers_leave_the_generator_alone(torch_cuda, driver, log):
    streams, ended = torch_cuda
    recorder = Recorder("a", False)
    session = recorder.begin(0, 5)
    assert recorder.end(session, 1) == (7, 0)
    assert ended == [(0, 1)]
    del session
    assert [name for name, *_ in released] == ["_cuda_beginAllocateCurrentThreadToPool", "_cuda_releasePool"]
    assert log() == ["forget"]
    for moment in ("begin", "end"):
        driver.fake_fail(2 * (moment == "begin"))
        with pytest.raises(RuntimeError, match="out of memory"):
            session = recorder.begin(0, 5)
            driver.fake_fail(2)
            recorder.end(session, 0)
        driver.fake_fail(0)
    assert streams[-1] is streams[0] and ended == [(0, 1), (0, 2), (0, 3)]


def test_seeds_of_graphs_are_written_in_turn(torch_cuda):
    """torch's capture writes an offset of 0 on its own stream: a replay that did not wait for it drew from there."""
    streams, _ = torch_cuda
    recorder = Recorder("a", True)
    first = recorder.begin(0, 5)
    recorder.end(first, 1)
    assert in_turn == [("ours", "users"), "begin"]
    first.replay()
    first.replay()
    assert in_turn[2:] == [("users", "ours"), "replay", "replay"]
    streams.append(type(streams[0])("others", None))
    second = recorder.begin(0, 6)
    recorder.end(second, 1)
    assert in_turn[5:] == [("others", "users"), ("ours", "others"), "begin"]
    for session in (second, first):
        session.replay()
    assert in_turn[8:] == [("others", "ours"), "replay", ("users", "others"), "replay"]


def test_streams_without_end_are_refused(torch_cuda):
    recorder, kept = Recorder("a", False), []
    for stream in range(8):
        kept.append(recorder.begin(0, stream))
        recorder.end(kept[-1], 1)
    with pytest.raises(RuntimeError, match="other streams"):
        recorder.begin(0, 8)
    recorder.end(recorder.begin(0, 3), 1)
    del kept[5]  # what was recorded for one is gone
    session = recorder.begin(0, 8)
    recorder.end(session, 1)
    with pytest.raises(RuntimeError, match="other streams"):
        recorder.begin(0, 5)


def test_stats_tell_what_became_of_recordings():
    stats.reset()
    Recorder("model", False).told("kept", None, 1.5, 0.5, 0)
    Recorder("model", False).told("recorded", None, 0, 0, 1)
    Recorder("model", False).told("not recordable", ValueError("no"), 0, 0, 0)
    seen = stats.stats()
    assert seen["counts"] == {f"CUDA graphs: {what}": 1 for what in ("kept", "recorded", "not recordable")}
    assert {*seen["reasons"]["CUDA graphs"]} == {
        "model: kept, 1.50 ms step by step, 0.50 ms as a graph",
        "model, many sizes: recorded",
        "model: not recordable: no",
    }


@pytest.mark.parametrize("table", [CHAIN, BETWEEN], ids=["kernels", "calls"])
def test_tensors_that_are_given_up_are_read_by_steps_and_replays(driver, log, recording, table):
    steps = [*table["steps"][:2], ["free", [0]], *table["steps"][2:]]
    run = executable({**table, "steps": steps}, recording, True, k=module("add"))
    for n in range(8):
        tensors = [torch.full((4,), float(n))]
        y = run(tensors)[0]
        assert tensors == []
        torch.testing.assert_close(y, torch.full((4,), n + 2.0))
    assert recording.said[0] == "recorded"


def test_numbers_that_kernels_have_by_value_are_those_of_each_call(driver, log, recording):
    """Such a number lies in the CPU's memory, where it may change or not, or be another tensor's."""
    table = {
        "slots": [slot("input", [0]), ["input", "i64", [], [], 0, "cpu"], slot("fresh", [0])],
        "registers": CHAIN["registers"],
        "views": [[2, [[0]], [1], 0, None]],
        "steps": [["alloc", [2]], ["kernel", "k", [0, 2, 1], [], "cuda:0", [[2]], [2]]],
        "outputs": [["t", 0]],
    }
    run = executable(table, recording, True, k=module("add"))
    number = torch.tensor([0, 4])[1]  # at an odd place
    for n in (*[6] * 5, *range(40, 60)):
        x = torch.randn(n)
        made, seen = asked(driver, log, run, x, number)
        torch.testing.assert_close(made[0][: int(number)], x[: int(number)] + 1)
        number = number.fill_(n % 5 + 1) if n % 3 else torch.tensor(n % 4 + 1)
    assert seen == ["set kernel", "graph"] and recording.said == ["recorded"] * 2
    x, number = torch.randn(6), torch.tensor(3)
    for _ in range(4):
        made, seen = asked(driver, log, run, x, number)
        torch.testing.assert_close(made[0][:3], x[:3] + 1)
    assert "launch add" not in seen


def test_numbers_on_the_cpu_do_not_keep_a_program_from_being_recorded():
    rows = {
        "slots": [["input", "f32", [4], [1], 0, "cuda:0"], ["input", "i64", [], [], 0, "cpu"]],
        "views": [[0, [4], [1], 0, None]],
        "steps": [["kernel", "k", [0, 1], [], "cuda:0", [1], [1]]] * 3,
    }
    assert recorder_of("g", rows, resolve, False) is not None
    for more in ({"views": [[1, [], [], 0, None]]}, {"steps": [*rows["steps"], ["kernel", "c", [1], [], "cpu", []]]}):
        assert recorder_of("g", {**rows, **more}, resolve, False) is None


def test_results_of_a_recording_are_those_of_its_first_call(driver, log, recording):
    """Memory for results is there once while a graph is made, that of the call."""
    run, x = executable(CHAIN, recording, True, k=module("add")), torch.randn(6)
    kept = [run(x)[0] for _ in range(6)]
    assert len({y.data_ptr() for y in kept}) == 6
    for y in kept:
        torch.testing.assert_close(y, x + 2)


class Streams:
    """Notes the steps of a capture on several streams."""

    def __init__(self, rows):
        self.rows, self.steps = rows, []

    def turn(self, step):
        self.steps.append(step)
        return 2 * (1 + (self.rows[step][0] if step >= 0 else 0))


BESIDE = {
    "slots": [slot("input", 4), slot("arena", 4), slot("arena", 4), slot("fresh", 4), slot("fresh", 4)],
    "arena": [16, "cpu"],
    "steps": [
        ["kernel", "k", [0, 1], [4], "cuda:0", [1]],
        ["alloc", [3]],
        ["kernel", "k", [1, 3], [4], "cuda:0", [1]],
        ["kernel", "k", [0, 2], [4], "cuda:0", [1]],
        ["alloc", [4]],
        ["kernel", "k", [2, 4], [4], "cuda:0", [1]],
    ],
    "outputs": [["t", 0], ["t", 1]],
    "views": [[3, [4], [1], 0, None], [4, [4], [1], 0, None]],
    "branches": [[0], [], [0], [1], [], [1, 2]],
}
"""x + 2 twice, whose temporaries are in one place."""


@pytest.mark.parametrize(("forced", "several", "kept"), [(True, 1.0, True), (False, 1.0, True), (True, 9.0, False)])
def test_steps_are_tried_on_several_streams(driver, log, recording, forced, several, kept):
    recording.branches, made = BESIDE["branches"], []

    def several_of(session):
        made.append(Streams(recording.branches))
        driver.fake_took(several)
        return made[-1]

    recording.several = several_of
    run = executable(BESIDE, recording, forced, k=module("add"))
    driver.fake_took(5.0)
    for _ in range(30):
        x = torch.randn(4)
        for y in run(x):
            torch.testing.assert_close(y, x + 2)
    assert [m.steps for m in made] == [[0, 2, 3, 5, -1]]
    last = ["kept on several streams"] if kept else ["slower on several streams", "recorded"]
    assert recording.said == ["recorded", "tried on one stream", "recorded", *last]


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("broken", [None, 0, 5, -1])
def test_what_several_streams_do_not_record_stays_on_one(driver, log, recording, forced, broken):
    class Broken(Streams):
        def turn(self, step):
            if step == broken:
                raise RuntimeError("no stream")
            return super().turn(step)

    def several(session):
        if broken is None:
            raise RuntimeError("no stream")
        return Broken(BESIDE["branches"])

    recording.branches, recording.several = BESIDE["branches"], several
    run = executable(BESIDE, recording, forced, k=module("add"))
    for _ in range(30):
        x = torch.randn(4)
        for y in run(x):
            torch.testing.assert_close(y, x + 2)
    assert recording.said[:4] == ["recorded", "tried on one stream", ("not recordable", "no stream"), "recorded"]
    assert recording.ends == [1, 0, 1]
