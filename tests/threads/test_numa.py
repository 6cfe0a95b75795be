"""Weights lie on all nodes of memory, where there are several; a library before the C library's fakes the machine."""

import os
import subprocess
import sys

import pytest

from firebrick.config import Config
from firebrick.runtime.build import find_compiler

pytestmark = [pytest.mark.compiler, pytest.mark.skipif(sys.platform != "linux", reason="sysfs")]

FAKE = r"""
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
static FILE *(*open_file)(const char *, const char *);
static long (*call)(long, ...);
__attribute__((constructor)) static void find() {
    *(void **)&open_file = dlsym(RTLD_NEXT, "fopen");
    *(void **)&call = dlsym(RTLD_NEXT, "syscall");
}
static FILE *open_there(const char *path, const char *mode) {
    const char *real = "/sys/devices/system/node", *fake = getenv("FAKE_NODES");
    char other[512];
    if (fake == nullptr || strncmp(path, real, strlen(real)) != 0) return open_file(path, mode);
    snprintf(other, sizeof other, "%s%s", fake, path + strlen(real));
    return open_file(other, mode);
}
extern "C" FILE *fopen(const char *path, const char *mode) { return open_there(path, mode); }
extern "C" FILE *fopen64(const char *path, const char *mode) { return open_there(path, mode); }
extern "C" long syscall(long number, ...) {
    va_list list;
    long a[6];
    va_start(list, number);
    for (long &word : a) word = va_arg(list, long);
    va_end(list);
    if (number == SYS_get_mempolicy) return *(int *)a[0] = atoi(getenv("FAKE_POLICY")), 0;
    if (number != SYS_move_pages) return call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    for (long i = 0; i < a[1]; i++) printf("%lx %d\n", ((long *)a[2])[i], ((int *)a[3])[i]);
    return fflush(stdout), 0;
}
"""
PROGRAM = """
import torch, firebrick
layer = torch.nn.Linear(1024, 512)
x = torch.randn(4, 1024)
with torch.no_grad():
    compiled = firebrick.compile(layer, options={"cache": False})
    torch.testing.assert_close(compiled(x), layer(x), atol=1e-4, rtol=1e-4)
    print("called")
    compiled(x)
print(f"{layer.weight.data_ptr():x}", layer.weight.nbytes)
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake")
    (folder / "fake.cpp").write_text(FAKE)
    compiler = find_compiler(Config.from_env())
    command = [*compiler.command, "-shared", "-fPIC", "-D_GNU_SOURCE", "fake.cpp", "-o", "fake.so", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    return folder


def run(fake, nodes, policy=0):
    folder = fake / "_".join(nodes.values()).replace(",", "x")
    for node, processors in nodes.items():
        (folder / node).mkdir(parents=True, exist_ok=True)
        (folder / node / "cpulist").write_text(processors + "\n")
    more = {"LD_PRELOAD": str(fake / "fake.so"), "FAKE_NODES": str(folder), "FAKE_POLICY": str(policy)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **more}, capture_output=True, text=True, check=True
    )
    moved, _, after = done.stdout.partition("called\n")
    rows = [line.split() for line in moved.splitlines()]
    (weight, nbytes), *again = reversed([line.split() for line in after.splitlines()])
    assert not again, "weights are moved once"
    return {int(page, 16): int(node) for page, node in rows}, range(int(weight, 16), int(weight, 16) + int(nbytes))


def processors():
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def test_pages_of_weights_go_round_the_nodes_of_the_process(fake):
    pages, weight = run(fake, {"node0": processors(), "node1": "9000-9001", "node2": processors()})
    size = os.sysconf("SC_PAGESIZE")
    whole = range(-(-weight.start // size) * size, weight.stop - size + 1, size)
    assert set(whole) <= set(pages)
    shares = [sum(pages[page] == node for page in whole) for node in (0, 1, 2)]
    assert shares[1] == 0, "no processor of the process is there"
    assert abs(shares[0] - shares[2]) <= 16


@pytest.mark.parametrize("policy", [0, 3])
def test_nothing_moves_on_one_node_or_where_the_user_has_said_where_memory_lies(fake, policy):
    nodes = {"node0": processors(), **({"node1": processors()} if policy else {"node1": "9000-9001"})}
    assert run(fake, nodes, policy)[0] == {}
