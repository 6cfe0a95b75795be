/* Derived constants: when their sources change, in whatever way, the recipe is run again.
 *
 * Version counters see in-place operations and data pointers see replaced storage. Writes through `.data` leave no
 * trace but the data itself, so samples of it are compared at each call.
 */
#include "host.h"

#include <stdlib.h>

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
    if (reach != count || reach == *rows) { /* one row of elements side by side is read fastest */
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
    const FbMachine *machine = self->program.devices[slot->device].machine;
    if (machine->fingerprint == NULL) return stamp;
    memory_shape(FB_HANDLE(tensor), &rows, &columns);
    if (stamp.data != NULL && rows * columns != 0) stamp.print = machine->fingerprint(stamp.data, slot->dtype->size, rows, columns);
    return stamp;
}

typedef struct {
    Executable *self;
    Stamp *now;
} StampWork;

static void stamp_one(void *argument, int source) {
    const StampWork *work = argument;
    work->now[source] = read_stamp(work->self, source);
}

/* Runs the recipe when a source is not what it was. */
int fb_update_derived(Executable *self) {
    Stamp *then = self->stamps, *now = malloc((size_t)self->source_count * sizeof *now + 1);
    if (now == NULL) return PyErr_NoMemory(), -1;
    StampWork work = {self, now};
    PyThreadState *thread = fb_cpu_callers() > 1 ? PyEval_SaveThread() : NULL; /* the others need the GIL to begin and to end */
    fb_cpu_share(stamp_one, &work, self->source_count);
    if (thread != NULL) PyEval_RestoreThread(thread);
    int same = self->derived != NULL;
    for (int i = 0; i < self->source_count; i++) {
        now[i].version = fb_version(PyList_GET_ITEM(self->constants, self->sources[i]));
        same = same && now[i].data == then[i].data && now[i].version == then[i].version && now[i].print == then[i].print;
        then[i] = now[i];
    }
    free(now);
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
    self->interleaved = 0;
    return 0;
}
