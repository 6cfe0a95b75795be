/* Derived constants: when their sources change, in whatever way, the recipe is run again.
 *
 * Version counters see in-place operations and data pointers see replaced storage. Writes through `.data` leave no
 * trace but the data itself, so samples of it are compared at each call.
 */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <string.h>

enum { AHEAD = 32 };

static uint64_t mix(uint64_t sum, uint64_t word) { return (sum ^ word) * 1099511628211u; }

static uint64_t word_of(const char *place, int width) {
    uint32_t half;
    uint64_t word = 0;
    if (width == 4) {
        memcpy(&half, place, 4);
        return half;
    }
    memcpy(&word, place, width == 8 ? 8 : width == 2 ? 2 : 1);
    return word;
}

/* A hash of samples that changes when any row or any column does: the first row, and of each pair of rows the last
 * word of one and the first word of the next, which share a cache line. Cache lines are what it costs, so they are
 * asked for ahead of their turn. */
static uint64_t fingerprint(FbHandle handle, int item, int64_t rows, int64_t columns) {
    void *data;
    uint64_t sum = 1469598103934665603u, four[4] = {1, 2, 3, 4};
    if (fb_torch.get_data_ptr(handle, &data) != 0 || data == NULL || rows * columns == 0) return 0;
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
        if (r + AHEAD < rows) __builtin_prefetch(bytes + (r + AHEAD) * pitch + pitch - 1);
        sum = mix(sum, word_of(bytes + r * pitch + pitch - item, width));
        if (r + 1 < rows) sum = mix(sum, word_of(bytes + (r + 1) * pitch, width));
    }
    return sum;
}

/* The tensor's memory as rows of columns; 0 when it is not dense, then only its first element is sampled. */
static void memory_shape(FbHandle handle, int64_t *rows, int64_t *columns) {
    int64_t dim, *sizes, *strides, count = 1, widest = 0;
    *rows = *columns = 1;
    if (fb_torch.get_dim(handle, &dim) != 0 || fb_torch.get_sizes(handle, &sizes) != 0 || fb_torch.get_strides(handle, &strides) != 0) return;
    int64_t reach = 1;
    for (int64_t d = 0; d < dim; d++) {
        count *= sizes[d];
        if (sizes[d] == 0) return;
        reach += (sizes[d] - 1) * strides[d];
        if (sizes[d] > 1 && strides[d] > widest) {
            widest = strides[d];
            *rows = sizes[d];
        }
    }
    if (reach != count) {
        *rows = 1;
        *columns = reach;
        return;
    }
    *columns = count / *rows;
}

/* Data and samples of a source; needs no GIL. */
static Stamp read_stamp(const Executable *self, int source) {
    PyObject *tensor = PyList_GET_ITEM(self->constants, self->sources[source]);
    const Slot *slot = &self->program.slots[self->program.consts[self->sources[source]]];
    Stamp stamp = {NULL, 0, 0};
    int64_t rows, columns;
    if (fb_torch.get_data_ptr(FB_HANDLE(tensor), &stamp.data) != 0) stamp.data = NULL;
    /* Memory of other machines can't be read here; there pointers and versions must do. */
    if (self->program.devices[slot->device].machine != &fb_cpu) return stamp;
    memory_shape(FB_HANDLE(tensor), &rows, &columns);
    stamp.print = fingerprint(FB_HANDLE(tensor), slot->dtype->size, rows, columns);
    return stamp;
}

/* ---- threads: the OpenMP runtime that torch has loaded */

static struct {
    void (*start)(void (*)(void *), void *, unsigned, unsigned);
    int (*number)(void);
    int (*count)(void);
} openmp;

void fb_derived_init(void) {
    void *library = fb_torch_library(), *symbols[3];
    symbols[0] = dlsym(library, "GOMP_parallel");
    symbols[1] = dlsym(library, "omp_get_thread_num");
    symbols[2] = dlsym(library, "omp_get_num_threads");
    if (symbols[0] == NULL || symbols[1] == NULL || symbols[2] == NULL) return;
    memcpy(&openmp.number, &symbols[1], sizeof(void *));
    memcpy(&openmp.count, &symbols[2], sizeof(void *));
    memcpy(&openmp.start, &symbols[0], sizeof(void *));
}

typedef struct {
    Executable *self;
    Stamp *now;
} StampWork;

static void stamp_part(void *argument) {
    const StampWork *work = argument;
    int step = openmp.count();
    for (int i = openmp.number(); i < work->self->source_count; i += step) {
        work->now[i] = read_stamp(work->self, i);
    }
}

/* Runs the recipe when a source is not what it was. */
int fb_update_derived(Executable *self) {
    int same = self->derived != NULL;
    Stamp *then = self->stamps, *now = then + self->source_count;
    StampWork work = {self, now};
    if (openmp.start == NULL || self->source_count < 8) {
        for (int i = 0; i < self->source_count; i++) now[i] = read_stamp(self, i);
    } else {
        openmp.start(stamp_part, &work, 0, 0);
    }
    for (int i = 0; i < self->source_count; i++) {
        now[i].version = fb_version(PyList_GET_ITEM(self->constants, self->sources[i]));
        same = same && now[i].data == then[i].data && now[i].version == then[i].version && now[i].print == then[i].print;
        then[i] = now[i];
    }
    if (same) return 0;
    /* Until the recipe has run through, what there was is not to be used again. */
    Py_CLEAR(self->derived);
    PyObject *fresh = PyObject_CallOneArg(self->refresh, self->constants);
    if (fresh == NULL) return -1;
    if (!PyList_Check(fresh) || PyList_GET_SIZE(fresh) != self->program.derived_count) {
        PyErr_SetString(PyExc_RuntimeError, "the recipe made another number of tensors than the table has");
        Py_DECREF(fresh);
        return -1;
    }
    Py_XSETREF(self->derived, fresh);
    return 0;
}
