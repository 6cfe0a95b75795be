/* The CPU's row: kernels are functions that this process calls, in memory that it reads. */
#define _GNU_SOURCE
#include "devices.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Fresh memory comes page by page, at the first write to each: several times what a loop takes to fill them. */
void fb_use_huge_pages(void *memory, int64_t size) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)1 << 21, from = ((uintptr_t)memory + page - 1) & ~(page - 1);
    const uintptr_t to = ((uintptr_t)memory + (uintptr_t)size) & ~(page - 1);
    if (from < to) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)memory, (void)size;
#endif
}

static void *cpu_allocate(int index, int64_t bytes, FbHandle *owner) {
    void *memory;
    *owner = NULL;
    if (posix_memalign(&memory, bytes >= 1 << 21 ? 1 << 21 : 64, (size_t)bytes) != 0) return NULL;
    fb_use_huge_pages(memory, bytes);
    return memory;
}

static void cpu_free(void *memory, FbHandle owner) { free(memory); }

static int cpu_launch(FbWork *work, const FbLaunch *launch) {
    void (*kernel)(void *const *, const int64_t *);
    memcpy(&kernel, &launch->kernel, sizeof kernel);
    kernel(launch->buffers, launch->sizes);
    return 0;
}

static int cpu_copy(const FbWork *work, void *to, const void *from, int64_t bytes) {
    memcpy(to, from, (size_t)bytes);
    return 0;
}

static const char *cpu_error(void) { return "out of memory"; }

enum { AHEAD = 32 };

static uint64_t mix(uint64_t sum, uint64_t word) { return (sum ^ word) * 1099511628211u; }

static uint64_t word_of(const char *place, int width) {
    uint64_t word = 0;
    if (width == 4) memcpy(&word, place, 4);
    else memcpy(&word, place, width == 8 ? 8 : width == 2 ? 2 : 1);
    return word;
}

/* A hash of samples that changes when any row or any column does: the first row, and of each pair of rows the last
 * word of one and the first word of the next, which often share a cache line. Cache lines are what it costs, so they
 * are asked for ahead of their turn. */
static uint64_t cpu_fingerprint(const void *data, int item, int64_t rows, int64_t columns) {
    uint64_t sum = 1469598103934665603u, four[4] = {1, 2, 3, 4};
    const char *bytes = data;
    int64_t pitch = columns * item, done = 0;
    int width = item >= 8 ? 8 : item;
    for (; done + 32 <= pitch; done += 32) { /* four chains at once, for a multiplication takes a while */
        for (int k = 0; k < 4; k++) {
            uint64_t word;
            memcpy(&word, bytes + done + 8 * k, 8);
            four[k] = mix(four[k], word);
        }
    }
    for (; done < pitch; done += item) sum = mix(sum, word_of(bytes + done, width));
    for (int k = 0; k < 4; k++) sum = mix(sum, four[k]);
    for (int64_t r = 1; r < rows; r += 2) {
        if (r + AHEAD < rows) __builtin_prefetch(bytes + (r + AHEAD + 1) * pitch - 1);
        if (r + AHEAD + 1 < rows) __builtin_prefetch(bytes + (r + AHEAD + 1) * pitch);
        sum = mix(sum, word_of(bytes + r * pitch + pitch - item, width));
        if (r + 1 < rows) sum = mix(sum, word_of(bytes + (r + 1) * pitch, width));
    }
    return sum;
}

/* ---- threads: the OpenMP runtime that torch has loaded */

static struct {
    void (*start)(void (*)(void *), void *, unsigned, unsigned);
    int (*number)(void);
    int (*count)(void);
    int (*limit)(void); /* torch's, which OpenMP's own follows only in threads where torch has been */
    int (*processors)(void);
    void (*set_limit)(int);
    int (*pause)(int);
} openmp;

typedef struct {
    void (*one)(void *work, int i);
    void *work;
    int count;
} Shared;

static void part(void *argument) {
    const Shared *shared = argument;
    for (int step = openmp.count(), i = openmp.number(); i < shared->count; i += step) shared->one(shared->work, i);
}

void fb_cpu_share(void (*one)(void *work, int i), void *work, int count) {
    Shared shared = {one, work, count};
    if (openmp.start != NULL && count >= 8) openmp.start(part, &shared, (unsigned)openmp.limit(), 0);
    else for (int i = 0; i < count; i++) one(work, i);
}

static int running;         /* threads that are in a call: they share the processors */
int fb_cpu_callers(void) { return __atomic_load_n(&running, __ATOMIC_RELAXED); }
static __thread int inside; /* calls of this thread, one within the other */
static __thread int trials; /* its first calls */

/* The most threads that were in calls at once in this span of time, or the one before it: one that is between two calls
 * will be back, and shares that go up and down with each call are teams of other sizes. */
static int crowd(int callers) {
    enum { SPAN = 20 }; /* ms */
    static int64_t since;
    static int before, most;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t passed = now.tv_sec * 1000 + now.tv_nsec / 1000000 - since;
    if (passed >= SPAN) before = passed < 2 * SPAN ? most : 0, most = 0, since += passed;
    if (callers > most) most = callers;
    return most > before ? most : before;
}

/* A call beside others, and what it calls of torch, gets a share of the processors, as a limit of its thread for the time
 * of the call: a team of another size is one whose threads libgomp ends or makes anew, so kernels don't choose theirs. */
static int cpu_enter(int index, FbWork *work) {
    const int callers = inside++ > 0 ? 1 : crowd(__atomic_add_fetch(&running, 1, __ATOMIC_RELAXED));
    const int limit = callers > 1 && openmp.start != NULL ? openmp.limit() : 0, share = limit > 1 ? openmp.processors() / callers : limit;
    work->context = share < limit ? (void *)(intptr_t)limit : NULL; /* what the thread had before */
    if (share < limit) openmp.set_limit(share > 1 ? share : 1);
    return 0;
}

/* The threads that a thread has for its teams end; its next team makes them anew. A forked child has none of its parent's. */
static void give_back_team(void) { openmp.pause(1 /* omp_pause_soft: settings stay */); }

/* Where libgomp has more threads than there are processors, those that wait sleep at once, which costs each kernel of all
 * callers: a thread that only tries a model out, before others serve it, is not to keep threads. */
static void cpu_leave(FbWork *work) {
    enum { TRIALS = 8 };
    if (--inside == 0) __atomic_sub_fetch(&running, 1, __ATOMIC_RELAXED);
    if (work->context != NULL) openmp.set_limit((int)(intptr_t)work->context);
    if (inside == 0 && openmp.start != NULL && trials < TRIALS) trials++, give_back_team();
}

static void forget_callers(void) { running = inside > 0; } /* in a forked child */

void fb_cpu_init(void) { /* in the order of the struct's fields */
    static const char *const names[] = {"GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "_ZN2at15get_num_threadsEv", "omp_get_num_procs", "omp_set_num_threads", "omp_pause_resource_all"};
    void *library = fb_torch_library(), *symbols[7];
    for (int i = 0; i < 7; i++)
        if ((symbols[i] = dlsym(library, names[i])) == NULL) return;
    memcpy(&openmp, symbols, sizeof symbols);
    pthread_atfork(give_back_team, NULL, forget_callers);
}

const FbMachine fb_cpu = {
    .name = "cpu",
    .symbol = "aoti_torch_device_type_cpu",
    .prefix = "aoti_torch_cpu_",
    .alignment = 1,
    .enter = cpu_enter,
    .leave = cpu_leave,
    .allocate = cpu_allocate,
    .free = cpu_free,
    .launch = cpu_launch,
    .copy = cpu_copy,
    .error = cpu_error,
    .fingerprint = cpu_fingerprint,
};
