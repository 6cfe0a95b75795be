/* Machines with several nodes of memory. What kernels write, and what torch packs on all threads, lies where the threads
 * that got those parts wrote it first. A weight lies where one thread has loaded it, and all threads of all calls read
 * it: its pages go round the nodes, so that each gives its share of the bandwidth. */
#define _GNU_SOURCE
#include "host.h"

#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_NODES = 64, TOGETHER = 16, AT_ONCE = 1024 /* pages */, MOVE = 2 /* MPOL_MF_MOVE: what no other process has */ };

/* The nodes with processors on which this thread may run; none where memory lies as the user has said (numactl). */
static int find_nodes(int nodes[MOST_NODES]) {
    int count = 0, policy = 0;
    cpu_set_t usable;
    if (syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0) != 0 || policy != 0 || sched_getaffinity(0, sizeof usable, &usable) != 0) return 0;
    for (int node = 0, from, to; node < MOST_NODES; node++) {
        char path[64];
        int has = 0;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        FILE *list = fopen(path, "r");
        while (list != NULL && fscanf(list, "%d", &from) == 1) { /* "0-3,8-11" */
            if (fscanf(list, "-%d", &to) != 1) to = from;
            for (; from <= to && from < CPU_SETSIZE; from++) has |= CPU_ISSET(from, &usable);
            if (fgetc(list) != ',') break;
        }
        if (list != NULL) fclose(list);
        if (has) nodes[count++] = node;
    }
    return count;
}

void fb_interleave(const Program *program, const Space *space) {
    int nodes[MOST_NODES], places[AT_ONCE], states[AT_ONCE], n;
    void *pages[AT_ONCE];
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), count = (uintptr_t)find_nodes(nodes);
    for (int i = 0; count > 1 && i < program->slot_count; i++) {
        const Slot *slot = &program->slots[i];
        if ((slot->kind != SLOT_CONST && slot->kind != SLOT_DERIVED) || program->devices[slot->device].machine != &fb_cpu) continue;
        uintptr_t at = (uintptr_t)space->pointers[i], to = at == 0 ? 0 : at + (uintptr_t)fb_span(program, space->registers, i);
        for (at = (at + page - 1) / page * page; at + page <= to;) {
            for (n = 0; n < AT_ONCE && at + page <= to; n++, at += page) pages[n] = (void *)at, places[n] = nodes[at / page / TOGETHER % count];
            if (syscall(SYS_move_pages, 0, (long)n, pages, places, states, MOVE) < 0) return; /* they stay where they are */
        }
    }
}
