/* Steps of a program that is recorded on several streams, each behind those that it waits for: `targets/branches.py`. */
#include "host.h"

/* Bytes of what steps write up to which each buffer has memory of its own. */
enum { MOST_SPREAD = 256 << 20 };

/* Kernels that begin while those before them run see those of their own stream only: the first after a turn waits. */
int fb_turn(const Program *program, Space *space, int step) {
    const int released = space->thread != NULL;
    fb_gil_take(space);
    PyObject *made = PyObject_CallMethod(space->branches, "turn", "i", step);
    void *stream = made == NULL ? NULL : PyLong_AsVoidPtr(made);
    Py_XDECREF(made);
    if (PyErr_Occurred()) return -1;
    for (int i = 0; i < program->device_count && stream != NULL; i++) {
        space->work[i].stream = stream;
        space->work[i].begun = 0;
    }
    if (stream != NULL) fb_note_turn(space, stream);
    if (released) fb_gil_release(space);
    return 0;
}

int fb_spread(const Program *program, Space *own) {
    int64_t bytes = 0;
    for (int i = 0; i < program->slot_count; i++) {
        if ((program->slots[i].kind != SLOT_ARENA && program->slots[i].kind != SLOT_FRESH) || fb_is_given(own->into, i)) continue;
        bytes += fb_span(program, own->registers, i);
        if (bytes > MOST_SPREAD || fb_allocate(program, own, i) < 0) return -1;
    }
    return 0;
}
