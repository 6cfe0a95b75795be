/* Steps of a program that is recorded on several streams, each behind those that it waits for: `passes/branches.py`. */
#include "host.h"

/* Bytes of what steps write up to which each buffer has memory of its own, and stays until the recording is complete. */
enum { MOST_SPREAD = 256 << 20 };

/* A kernel that begins while the one before it runs waits for that one alone, so none does where steps of other streams
   come before it too; an odd address is of a stream where they don't. */
int fb_turn(const Program *program, Space *space, int step) {
    const int released = space->thread != NULL;
    fb_gil_take(space);
    PyObject *made = PyObject_CallMethod(space->branches, "turn", "i", step);
    const uintptr_t told = made == NULL ? 0 : (uintptr_t)PyLong_AsVoidPtr(made);
    Py_XDECREF(made);
    if (PyErr_Occurred()) return -1;
    for (int i = 0; i < program->device_count && told != 0; i++) {
        space->work[i].stream = (void *)(told & ~(uintptr_t)1);
        space->work[i].begun &= told & 1;
    }
    void *node; /* what the stream has come to is no node of the step */
    if (told != 0) fb_newest(space->into, (void *)(told & ~(uintptr_t)1), &node);
    if (released) fb_gil_release(space);
    return 0;
}

int fb_is_spread(const Program *program, const int64_t *registers) {
    int64_t bytes = 0;
    for (int i = 0; i < program->slot_count; i++) {
        const SlotKind kind = program->slots[i].kind;
        if (kind == SLOT_ARENA || kind == SLOT_FRESH || kind == SLOT_CALL) bytes += fb_span(program, registers, i);
    }
    return bytes <= MOST_SPREAD;
}

int fb_spread(const Program *program, Space *own) {
    for (int i = 0; i < program->slot_count; i++) {
        if ((program->slots[i].kind != SLOT_ARENA && program->slots[i].kind != SLOT_FRESH) || fb_is_given(own->into, i)) continue;
        if (fb_allocate(program, own, i) < 0) return -1;
    }
    return 0;
}
