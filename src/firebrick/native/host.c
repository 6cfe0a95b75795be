/* Executable: runs a host table. One call allocates, launches kernels, calls torch and makes the outputs. */
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a result from which the C library takes it from the system anew at each call, or may. */
#define LARGE ((int64_t)8 << 20)
/* Bytes from which it may be told to have a mapping for each piece of memory, and what it keeps for us at most. */
#define MAPPED ((int64_t)32 << 20)
#define MOST_KEPT ((int64_t)1 << 30)
#define MOST_UNDONE ((int64_t)1 << 16) /* bytes of a tensor; a copy of so many takes a microsecond or two */

enum { MAX_DIM = 64, IDLE = 64 /* calls in which a space was of no use, until it is freed */ };

static int32_t strided_layout;

void fb_gil_take(Space *space) {
    if (space->thread != NULL) PyEval_RestoreThread(space->thread);
    space->thread = NULL;
}

void fb_gil_release(Space *space) {
    if (space->thread == NULL) space->thread = PyEval_SaveThread();
}

void fb_torch_error(const char *what) {
    const char *text = fb_host.error_text == NULL ? NULL : fb_host.error_text();
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, text == NULL || *text == 0 ? what : text);
}

/* ---- spaces ----------------------------------------------------------------- */

static void drop_arena(const Program *program, Space *space);

void fb_free_space(const Program *program, Space *space) {
    if (space == NULL) return;
    for (int i = 0; space->views != NULL && i < program->view_count; i++) {
        if (space->views[i] != NULL) fb_torch.delete_tensor(space->views[i]);
    }
    drop_arena(program, space);
    free(space->before);
    free(space);
}

Space *fb_new_space(const Program *program) {
    size_t slots = program->slot_count, views = program->view_count, widest = program->widest_launch + 1;
    size_t words = program->register_count + 4 * slots + 2 * views + 2 * widest + 2 * slots + 1;
    Space *space = calloc(1, sizeof(Space) + 8 * words + 16);
    if (space == NULL) return (Space *)PyErr_NoMemory();
    uint64_t *next = (uint64_t *)(space + 1);
    space->registers = (int64_t *)next;
    space->pointers = (void **)(next += program->register_count);
    space->handles = (FbHandle *)(next += slots);
    space->objects = (PyObject **)(next += slots);
    space->owned = (uint8_t *)(next += slots);
    space->views = (FbHandle *)(next += slots);
    space->view_bases = (void **)(next += views);
    space->launch = (void **)(next += views);
    space->launch_sizes = (int64_t *)(next += widest), space->numbers = (int64_t *)(((uintptr_t)(next + widest) + 15) & ~(uintptr_t)15);
    return space;
}

/* There are as many as calls at once: a thread gets the one that it had, or else the one that was used least lately. */
static Space *take_space(Executable *self) {
    const uintptr_t user = (uintptr_t)PyThread_get_thread_ident();
    Space **place = &self->spaces;
    while (*place != NULL && (*place)->user != user && (*place)->next != NULL) place = &(*place)->next;
    Space *space = *place == NULL ? fb_new_space(&self->program) : *place;
    if (*place != NULL) *place = space->next;
    if (space != NULL) space->user = user;
    return space;
}

static void return_space(Executable *self, Space *space) {
    Space **last = &self->spaces;
    space->turn = self->turns++, space->next = self->spaces, self->spaces = space;
    while ((*last)->next != NULL) last = &(*last)->next;
    if (self->turns - (*last)->turn <= IDLE) return;
    fb_free_space(&self->program, *last);
    *last = NULL;
}

/* A call's results are often gone before the next call makes as many. glibc gives what is free at the end of its heap
   back to the system, from twice MAPPED on or less, and takes it anew page by page, which takes longer than to fill it.
   So it is told to keep as much as two calls make, where the user asks for it: that holds for the whole process. */
static void keep_free_memory(int64_t bytes) {
#ifdef M_TRIM_THRESHOLD
    static _Atomic int64_t kept;
    const int64_t most = bytes < MOST_KEPT / 2 ? bytes : MOST_KEPT / 2, wanted = 2 * (most > MAPPED ? most : MAPPED);
    if (bytes < LARGE || wanted <= atomic_load(&kept)) return;
    atomic_store(&kept, wanted);
    if (getenv("MALLOC_TRIM_THRESHOLD_") || getenv("MALLOC_MMAP_THRESHOLD_") || getenv("GLIBC_TUNABLES")) return;
    mallopt(M_MMAP_THRESHOLD, (int)MAPPED);
    mallopt(M_TRIM_THRESHOLD, (int)wanted);
#else
    (void)bytes;
#endif
}

static const Device *device_of(const Program *program, int slot) { return &program->devices[program->slots[slot].device]; }

static void drop_arena(const Program *program, Space *space) {
    if (space->arena != NULL) program->devices[program->arena_device].machine->free(space->arena, space->arena_owner);
    space->arena = NULL;
    space->arena_owner = NULL;
    space->arena_size = 0;
}

static int place_arena(const Program *program, Space *space) {
    for (int i = 0; i < program->slot_count; i++) {
        const Slot *slot = &program->slots[i];
        if (slot->kind == SLOT_ARENA) space->pointers[i] = space->arena + fb_num(space->registers, slot->offset);
    }
    return 0;
}

/* The exception that torch has for memory that it can't give: of which type, and what else holds memory, only it knows. */
static int no_memory(const Device *device, int64_t bytes, const char *what) {
    PyObject *torch = device->machine->own_memory ? NULL : PyImport_ImportModule("torch");
    PyObject *storage = torch == NULL ? NULL : PyObject_GetAttrString(torch, "UntypedStorage");
    PyObject *size = Py_BuildValue("(L)", (long long)bytes), *place = PyUnicode_FromFormat("%s:%d", device->machine->name, device->index);
    PyObject *rest = place == NULL ? NULL : Py_BuildValue("{s:O}", "device", place);
    PyObject *made = storage == NULL || size == NULL || rest == NULL ? NULL : PyObject_Call(storage, size, rest);
    Py_XDECREF(made), Py_XDECREF(rest), Py_XDECREF(place), Py_XDECREF(size), Py_XDECREF(storage), Py_XDECREF(torch);
    fb_torch_error(what);
    return -1;
}

int fb_reserve_arena(const Program *program, Space *space) {
    const Device *device = &program->devices[program->arena_device];
    int64_t size = fb_num(space->registers, program->arena);
    if (size <= space->arena_size) return place_arena(program, space);
    for (int i = 0; i < program->view_count; i++) {
        if (space->views[i] != NULL && program->slots[program->views[i].slot].kind == SLOT_ARENA && device->machine == &fb_cpu) {
            fb_torch.delete_tensor(space->views[i]);
            space->views[i] = NULL;
        }
    }
    drop_arena(program, space);
    space->arena = device->machine->allocate(device->index, size, &space->arena_owner);
    if (space->arena == NULL) return no_memory(device, size, "temporaries could not be allocated");
    space->arena_size = size;
    return place_arena(program, space);
}

/* ---- tensors ------------------------------------------------------------------- */

static void read_nums(const Space *space, const Nums *nums, int64_t *out) {
    for (int i = 0; i < nums->count; i++) out[i] = fb_num(space->registers, nums->items[i]);
}

/* A handle that shares the memory of the view's slot. Results of `owner` kind keep the storage alive. */
static FbHandle make_view(const Program *program, const Space *space, const View *view) {
    const Slot *slot = &program->slots[view->slot];
    int64_t sizes[MAX_DIM], strides[MAX_DIM], offset = fb_num(space->registers, view->offset);
    FbHandle base = space->handles[view->slot], made;
    if (view->sizes.count > MAX_DIM) return NULL;
    read_nums(space, &view->sizes, sizes);
    read_nums(space, &view->strides, strides);
    if (base == NULL || view->retyped) {
        char *data = (char *)space->pointers[view->slot] + offset * slot->dtype->size;
        const Device *device = device_of(program, view->slot);
        int32_t status =
            fb_host.from_blob(data, view->sizes.count, sizes, strides, 0, view->dtype->code, device->type, device->index, &made);
        return status == 0 ? made : NULL;
    }
    /* The offset counts from the tensor's own first element. */
    return fb_host.reinterpret(base, view->sizes.count, sizes, strides, offset, &made) == 0 ? made : NULL;
}

FbHandle fb_view(const Program *program, Space *space, int index, int *temporary) {
    const View *view = &program->views[index];
    void *data = space->pointers[view->slot];
    *temporary = 0;
    if (view->whole) return space->handles[view->slot];
    if (!view->lasting) {
        *temporary = 1;
        return make_view(program, space, view);
    }
    if (space->views[index] != NULL && space->view_bases[index] == data) return space->views[index];
    if (space->views[index] != NULL) fb_torch.delete_tensor(space->views[index]);
    space->view_bases[index] = data;
    space->views[index] = make_view(program, space, view);
    return space->views[index];
}

int32_t fb_new_tensor(const Program *program, const Space *space, const Slot *slot, FbHandle *made) {
    const Device *device = &program->devices[slot->device];
    int64_t sizes[MAX_DIM], strides[MAX_DIM];
    if (slot->sizes.count > MAX_DIM) return -1;
    read_nums(space, &slot->sizes, sizes);
    read_nums(space, &slot->strides, strides);
    return fb_host.empty_strided(slot->sizes.count, sizes, strides, slot->dtype->code, device->type, device->index, made);
}

int64_t fb_span(const Program *program, const int64_t *registers, int place) {
    const Slot *slot = &program->slots[place];
    int64_t bytes = slot->dtype->size;
    for (int d = 0; d < slot->sizes.count; d++) {
        const int64_t size = fb_num(registers, slot->sizes.items[d]);
        if (size <= 0) return 0;
        bytes += (size - 1) * fb_num(registers, slot->strides.items[d]) * slot->dtype->size;
    }
    return bytes;
}

int fb_allocate(const Program *program, Space *space, int index) {
    const int64_t bytes = fb_span(program, space->registers, index);
    if (space->owned[index]) return -1;
    const Device *device = device_of(program, index);
    if (device->machine->own_memory) {
        space->pointers[index] = device->machine->allocate(device->index, bytes, &space->handles[index]);
        space->owned[index] = space->pointers[index] != NULL;
        return space->owned[index] - 1;
    }
    if (fb_new_tensor(program, space, &program->slots[index], &space->handles[index]) != 0) return -1;
    space->owned[index] = 1;
    if (fb_torch.get_data_ptr(space->handles[index], &space->pointers[index]) != 0) return -1;
    if (device->machine != &fb_cpu) return 0;
    if (bytes >= LARGE) fb_use_huge_pages(space->pointers[index], bytes);
    if (bytes < MAPPED) space->made += bytes;
    return 0;
}

void fb_release(const Program *program, Space *space, int index) {
    const FbMachine *machine = device_of(program, index)->machine;
    if (space->owned[index] && machine->own_memory) machine->free(space->pointers[index], space->handles[index]);
    else if (space->owned[index]) fb_torch.delete_tensor(space->handles[index]);
    space->owned[index] = 0;
    space->handles[index] = NULL;
}

int fb_has_layout(const Space *space, const Slot *slot, FbHandle handle) {
    int64_t dim, *sizes, *strides;
    int32_t dtype;
    if (fb_torch.get_dtype(handle, &dtype) != 0 || dtype != slot->dtype->code) return 0;
    if (fb_torch.get_dim(handle, &dim) != 0 || dim != slot->sizes.count) return 0;
    if (fb_torch.get_sizes(handle, &sizes) != 0 || fb_torch.get_strides(handle, &strides) != 0) return 0;
    int empty = 0, strides_fit = 1;
    for (int64_t d = 0; d < dim; d++) {
        if (sizes[d] != fb_num(space->registers, slot->sizes.items[d])) return 0;
        empty |= sizes[d] == 0;
        strides_fit &= sizes[d] == 1 || strides[d] == fb_num(space->registers, slot->strides.items[d]);
    }
    return empty || strides_fit;
}

/* Whether a tensor is what the table was made for. */
static int fits(const Program *program, const Space *space, const Slot *slot, FbHandle handle) {
    const Device *expected = &program->devices[slot->device];
    int32_t device;
    if (fb_torch.get_device_type(handle, &device) != 0 || device != expected->type) return 0;
    if (expected->machine != &fb_cpu && (fb_torch.get_device_index(handle, &device) != 0 || device != expected->index)) return 0;
    return fb_has_layout(space, slot, handle);
}

/* ---- one call ------------------------------------------------------------------------ */

static int64_t floor_div(int64_t a, int64_t b) {
    int64_t q = b == 0 ? 0 : a / b;
    return q - (b != 0 && a % b != 0 && (a < 0) != (b < 0));
}

int fb_fill_registers(const Program *program, int64_t *registers, PyObject *const *args) {
    for (int i = 0; i < program->register_count; i++) {
        const RegisterOp *op = &program->registers[i];
        int64_t a = fb_num(registers, op->a), b = fb_num(registers, op->b), *sizes, dim, value = 0;
        switch (op->op) {
        case 's':
            if (args == NULL) continue;
            if (a < 0 || a >= program->input_count || fb_torch.get_dim(FB_HANDLE(args[a]), &dim) != 0 || b >= dim) return -1;
            if (fb_torch.get_sizes(FB_HANDLE(args[a]), &sizes) != 0) return -1;
            value = sizes[b];
            break;
        case '+': value = a + b; break;
        case '*': value = a * b; break;
        case '/': value = floor_div(a, b); break;
        case '%': value = a - floor_div(a, b) * b; break;
        case '<': value = a < b ? a : b; break;
        case '>': value = a > b ? a : b; break;
        }
        registers[i] = value;
    }
    return 0;
}

static int bind(Space *space, int slot, PyObject *tensor) {
    space->handles[slot] = FB_HANDLE(tensor);
    return fb_torch.get_data_ptr(space->handles[slot], &space->pointers[slot]);
}

/* A derived constant may be in a layout of the library's own, which has no address. */
static int bind_derived(const Program *program, Space *space, int slot, PyObject *tensor) {
    int32_t layout;
    if (device_of(program, slot)->machine->own_memory) {
        space->pointers[slot] = PyLong_AsVoidPtr(tensor);
        return 0;
    }
    space->handles[slot] = FB_HANDLE(tensor);
    space->pointers[slot] = NULL;
    if (fb_torch.get_layout(space->handles[slot], &layout) != 0) return -1;
    return layout == strided_layout ? fb_torch.get_data_ptr(space->handles[slot], &space->pointers[slot]) : 0;
}

static int bind_all(Executable *self, Space *space, PyObject *const *args) {
    const Program *program = &self->program;
    for (int i = 0; i < program->input_count; i++) {
        if (!PyObject_TypeCheck(args[i], fb_tensor_type))
            return FB_RAISE(PyExc_TypeError, "input %d is a %s, not a tensor", i, Py_TYPE(args[i])->tp_name);
    }
    if (fb_fill_registers(program, space->registers, args) < 0)
        return FB_RAISE(PyExc_ValueError, "an input has another number of axes than the graph was compiled for");
    for (int i = 0; i < program->input_count; i++) {
        int slot = program->inputs[i];
        if (!fits(program, space, &program->slots[slot], FB_HANDLE(args[i])))
            return FB_RAISE(PyExc_ValueError, "input %d has another dtype, device, shape or strides than the graph was compiled for", i);
        if (bind(space, slot, args[i]) != 0) goto torch_error;
    }
    for (int i = 0; i < program->const_count; i++) {
        int slot = program->consts[i];
        PyObject *tensor = PyList_GET_ITEM(self->constants, i);
        if (!fits(program, space, &program->slots[slot], FB_HANDLE(tensor)))
            return FB_RAISE(self->changed, "captured tensor %d changed its dtype, device, shape or strides", i);
        if (bind(space, slot, tensor) != 0) goto torch_error;
    }
    if (program->derived_count > 0 && fb_update_derived(self) < 0) return -1;
    for (int i = 0; i < program->derived_count; i++) {
        /* Another thread may replace the derived constants while this one runs without the GIL. */
        int slot = program->derived[i];
        Py_XSETREF(space->objects[slot], Py_NewRef(PyList_GET_ITEM(self->derived, i)));
        if (bind_derived(program, space, slot, space->objects[slot]) != 0) goto torch_error;
    }
    if (!self->interleaved) fb_interleave(program, space), self->interleaved = 1;
    return 0;
torch_error:
    fb_torch_error("a tensor's memory can't be read");
    return -1;
}

static int check_index(Space *space, const Step *step) {
    const int64_t *seen = space->pointers[step->slots[0]];
    int high = seen[0] > fb_num(space->registers, step->high);
    if (!high && seen[1] >= fb_num(space->registers, step->low)) return 0;
    fb_gil_take(space);
    if (step->after == NULL) PyErr_SetString(step->error, step->text);
    else PyErr_Format(step->error, "%s%lld%s", step->text, (long long)(high ? seen[0] : seen[1]), step->after);
    return -1;
}

static int refused(const Device *device, Space *space, const char *label) {
    fb_gil_take(space);
    if (PyErr_Occurred()) return -1;
    return FB_RAISE(PyExc_RuntimeError, label == NULL ? "%s" : "%s, at %s", device->machine->error(), label);
}

int fb_is_written(const Program *program, int slot) {
    if (program->slots[slot].kind != SLOT_INPUT && program->slots[slot].kind != SLOT_CONST) return 1;
    for (int i = 0; i < program->mutated_count; i++) {
        if (program->mutated[i] == slot) return 1;
    }
    return 0;
}

/* Kernels are written for aligned addresses: a tensor that begins elsewhere is copied before, and back if it is written. */
static int launch_aligned(const Program *program, Space *space, const Step *step, FbLaunch *launch, int from) {
    const Device *device = &program->devices[step->device];
    FbWork *work = &space->work[step->device];
    const int alignment = device->machine->alignment;
    while (from < step->count && ((step->values && step->values[from]) || (uintptr_t)launch->buffers[from] % alignment == 0)) from++;
    if (from == step->count) return device->machine->launch(work, launch);
    const int64_t bytes = fb_span(program, space->registers, step->slots[from]);
    if (bytes <= 0) return launch_aligned(program, space, step, launch, from + 1);
    FbHandle owner;
    void *place = launch->buffers[from], *copy = device->machine->allocate(device->index, bytes, &owner);
    if (copy == NULL) {
        fb_gil_take(space);
        return no_memory(device, bytes, "a copy of a tensor at an odd address could not be allocated");
    }
    int status = device->machine->copy(work, copy, place, bytes);
    launch->buffers[from] = copy;
    if (status == 0) status = launch_aligned(program, space, step, launch, from + 1);
    if (status == 0 && fb_is_written(program, step->slots[from])) status = device->machine->copy(work, place, copy, bytes);
    device->machine->free(copy, owner);
    return status;
}

FbLaunch fb_launch_of(Space *space, const Step *step, void *const *pointers, int64_t grid[3]) {
    for (int k = 0; k < step->count; k++) space->launch[k] = pointers[step->slots[k]];
    read_nums(space, &step->sizes, space->launch_sizes);
    read_nums(space, &step->grid, grid);
    return (FbLaunch){step->kernel, space->launch, space->launch_sizes, grid, step->values, step->count, step->sizes.count, step->grid.count};
}

static int run_kernel(const Program *program, Space *space, const Step *step) {
    int64_t grid[3];
    FbLaunch launch = fb_launch_of(space, step, space->pointers, grid);
    if (launch_aligned(program, space, step, &launch, 0) == 0) {
        if (space->into != NULL) fb_note_launch(program, space, (int)(step - program->steps));
        return 0;
    }
    return refused(&program->devices[step->device], space, step->label);
}

/* Returns -1 with the GIL held and an exception set. */
static int run_step(const Program *program, Space *space, Step *step) {
    switch (step->kind) {
    case STEP_KERNEL: return run_kernel(program, space, step);
    case STEP_CALL: return fb_call(program, space, step->call);
    case STEP_CHECK: return check_index(space, step);
    case STEP_DRAW: return fb_cuda_draw(program, space, step);
    case STEP_ALLOC:
        for (int k = 0; k < step->count; k++) {
            if (space->into != NULL && fb_is_given(space->into, step->slots[k])) continue;
            if (fb_allocate(program, space, step->slots[k]) == 0) continue;
            const Device *device = device_of(program, step->slots[k]);
            if (device->machine->own_memory) return refused(device, space, NULL);
            fb_gil_take(space);
            return no_memory(device, fb_span(program, space->registers, step->slots[k]), "a tensor could not be allocated");
        }
        break;
    case STEP_FREE:
        for (int k = 0; k < step->count; k++) {
            /* A recording reads inputs at each replay. */
            if (space->into == NULL || program->slots[step->slots[k]].kind != SLOT_INPUT) fb_release(program, space, step->slots[k]);
        }
        break;
    }
    return 0;
}

/* Steps have ranges that profilers show; looking whether there is a profiler is done once a call. */
static int run_steps(const Program *program, Space *space) {
    space->made = 0;
    int watched = fb_host.has_callbacks != NULL && fb_host.has_callbacks();
    for (int i = 0; i < program->step_count; i++) {
        Step *step = &program->steps[i];
        space->at = i;
        void *range = NULL;
        if (space->branches != NULL && (step->kind == STEP_ALLOC || step->kind == STEP_FREE)) continue; /* all is there, and stays */
        if (space->branches != NULL && fb_turn(program, space, i) < 0) return -1;
        if (watched && step->label != NULL && fb_host.range_start(step->label, NULL, NULL, 0, &range) != 0) range = NULL;
        int status = run_step(program, space, step);
        if (range != NULL) fb_host.range_end(range);
        if (status < 0) return -1;
    }
    if (program->keeps_memory) keep_free_memory(space->made);
    return 0;
}

static PyObject *output_tensor(const Program *program, Space *space, int index) {
    const View *view = &program->views[index];
    const Slot *slot = &program->slots[view->slot];
    FbHandle made, typed;
    /* A result on the memory of an argument is a tensor of its own: what the caller makes of it is not the argument's. */
    if (view->whole && slot->kind != SLOT_INPUT && slot->kind != SLOT_CONST) {
        if (space->handles[view->slot] == NULL) return PyErr_Format(PyExc_RuntimeError, "an output was never allocated");
        if (space->objects[view->slot] == NULL) space->objects[view->slot] = fb_wrap(space->handles[view->slot]);
        return Py_XNewRef(space->objects[view->slot]);
    }
    if (slot->kind == SLOT_ARENA) return PyErr_Format(PyExc_RuntimeError, "an output can't live in the arena");
    if (view->retyped) {
        /* The view keeps the storage alive, so it is made from the slot's tensor and not from its address. */
        int64_t sizes[MAX_DIM], strides[MAX_DIM];
        if (view->sizes.count > MAX_DIM || fb_host.view_dtype(space->handles[view->slot], view->dtype->code, &typed) != 0) goto failed;
        read_nums(space, &view->sizes, sizes);
        read_nums(space, &view->strides, strides);
        int64_t offset = fb_num(space->registers, view->offset) * slot->dtype->size / view->dtype->size;
        int32_t status = fb_host.reinterpret(typed, view->sizes.count, sizes, strides, offset, &made);
        fb_torch.delete_tensor(typed);
        if (status != 0) goto failed;
    } else if ((made = make_view(program, space, view)) == NULL) {
        goto failed;
    }
    PyObject *tensor = fb_wrap(made);
    fb_torch.delete_tensor(made);
    return tensor;
failed:
    fb_torch_error("an output could not be made");
    return NULL;
}

static PyObject *make_outputs(const Program *program, Space *space) {
    PyObject *outputs = PyTuple_New(program->output_count);
    for (int i = 0; outputs != NULL && i < program->output_count; i++) {
        const Output *output = &program->outputs[i];
        PyObject *value;
        switch (output->kind) {
        case ARG_VIEW: value = output_tensor(program, space, output->view); break;
        case ARG_INT: value = PyLong_FromLongLong(fb_num(space->registers, output->num)); break;
        default: value = Py_NewRef(output->object);
        }
        if (value == NULL) Py_CLEAR(outputs);
        else PyTuple_SET_ITEM(outputs, i, value);
    }
    return outputs;
}

/* Kernels write inputs without torch's knowledge; autograd and other executables go by the version counters. */
static int bump_versions(Executable *self, PyObject *const *args) {
    const Program *program = &self->program;
    for (int i = 0; i < program->mutated_count; i++) {
        const Slot *slot = &program->slots[program->mutated[i]];
        PyObject *tensor = slot->kind == SLOT_INPUT ? args[slot->index] : PyList_GET_ITEM(self->constants, slot->index);
        if (fb_bump_version(tensor) < 0) return -1;
    }
    return 0;
}

void fb_clear_space(const Program *program, Space *space) {
    for (int i = 0; i < program->slot_count; i++) {
        Py_CLEAR(space->objects[i]);
        fb_release(program, space, i);
    }
    if (program->devices[program->arena_device].machine != &fb_cpu) drop_arena(program, space);
}

/* Makes the devices current and learns their streams; -1 with an exception set. */
int fb_enter(const Program *program, Space *space) {
    for (int d = 0; d < program->device_count; d++) {
        const Device *device = &program->devices[d];
        if (device->machine->enter == NULL || device->machine->enter(device->index, &space->work[d]) == 0) continue;
        while (d-- > 0) {
            if (program->devices[d].machine->leave != NULL) program->devices[d].machine->leave(&space->work[d]);
        }
        return refused(device, space, NULL);
    }
    return 0;
}

void fb_leave(const Program *program, Space *space) {
    for (int d = program->device_count; d-- > 0;) {
        if (program->devices[d].machine->leave != NULL) program->devices[d].machine->leave(&space->work[d]);
    }
}

/* Runs the steps as eager kernels would run: conversions of autocast are steps of the graph, which may also switch it
   off, and torch calls record nothing for autograd. */
int fb_run_plainly(const Program *program, Space *space) {
    uint32_t cast = 0;
    int grad_mode = program->calls_library && (fb_torch.grad_mode_is_enabled() & 1);
    for (int d = 0; program->calls_library && fb_host.autocast_enabled != NULL && d < program->device_count; d++) {
        if (!fb_host.autocast_enabled((int8_t)program->devices[d].type)) continue;
        fb_host.set_autocast((int8_t)program->devices[d].type, false);
        cast |= 1u << d;
    }
    if (grad_mode) fb_host.set_grad_mode(0);
    if (program->release_gil) fb_gil_release(space);
    int status = run_steps(program, space);
    fb_gil_take(space);
    if (grad_mode) fb_host.set_grad_mode(1);
    for (int d = 0; cast >> d != 0; d++) {
        if (cast >> d & 1) fb_host.set_autocast((int8_t)program->devices[d].type, true);
    }
    return status;
}

/* The work of a call whose arguments are bound: by a graph that was recorded, or step by step. */
static int run(Executable *self, Space *space) {
    Recording *watched = NULL;
    int status = self->recorder == NULL ? 0 : fb_replay(self, space, &watched);
    if (status != 0) return status < 0 ? -1 : 0;
    status = fb_reserve_arena(&self->program, space) < 0 ? -1 : fb_run_plainly(&self->program, space);
    if (watched != NULL) fb_watched(watched, status == 0);
    return status;
}

/* Small tensors that a step writes before another one may raise, such as the statistics of a batch norm, can be put back
   as they were: whoever catches the error, or starts afresh in plain Python, must not meet half of what was to be done. */
static int64_t undoable(const Program *program, const Space *space, int i) {
    const int slot = program->undo[i];
    const int64_t bytes = device_of(program, slot)->machine == &fb_cpu ? fb_span(program, space->registers, slot) : MOST_UNDONE + 1;
    return bytes <= MOST_UNDONE ? (bytes > 0 ? bytes : 0) : -1;
}

static int keep_before(const Program *program, Space *space) {
    int64_t total = 0;
    space->at = -1;
    for (int i = 1; i < program->undo_count; i++) {
        const int64_t bytes = undoable(program, space, i);
        total += bytes > 0 ? bytes : 0;
    }
    if (total > space->before_size) {
        char *larger = realloc(space->before, (size_t)total);
        if (larger == NULL) return PyErr_NoMemory(), -1;
        space->before = larger, space->before_size = total;
    }
    char *to = space->before;
    for (int i = 1; i < program->undo_count; i++) {
        const int64_t bytes = undoable(program, space, i);
        if (bytes > 0) memcpy(to, space->pointers[program->undo[i]], (size_t)bytes), to += bytes;
    }
    return 0;
}

/* An exception is set. What is too large for a copy has changed, which its version says then. */
static void put_back(Executable *self, Space *space, PyObject *const *args) {
    const Program *program = &self->program;
    if (program->undo_count == 0 || space->at < program->undo[0]) return;
    const char *from = space->before;
    int whole = 1;
    for (int i = 1; i < program->undo_count; i++) {
        const int64_t bytes = undoable(program, space, i);
        if (bytes > 0) memcpy(space->pointers[program->undo[i]], from, (size_t)bytes), from += bytes;
        whole = whole && bytes >= 0;
    }
    if (whole) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (bump_versions(self, args) < 0) PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

/* Tensors in a list are the program's: it empties the list, and its steps free each where they read it for the last time. */
static int take(const Program *program, Space *space, PyObject *list) {
    if (program->mutated_count > 0) return 0; /* whose versions are to be changed in the end */
    for (int i = 0; i < program->input_count; i++) {
        const int slot = program->inputs[i];
        if (device_of(program, slot)->machine->own_memory) return 0;
        if (fb_host.new_handle(space->handles[slot], &space->handles[slot]) != 0) return fb_torch_error("a tensor can't be held"), -1;
        space->owned[slot] = 1;
    }
    return PyList_SetSlice(list, 0, program->input_count, NULL);
}

static PyObject *executable_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    Executable *self = (Executable *)object;
    Program *program = &self->program;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *outputs = NULL, *list = count == 1 && PyList_CheckExact(args[0]) ? args[0] : NULL;
    if (list != NULL) args = ((PyListObject *)list)->ob_item, count = PyList_GET_SIZE(list);
    if (count != program->input_count || (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return PyErr_Format(PyExc_TypeError, "this executable takes %d tensors, got %zd", program->input_count, count);
    Space *space = take_space(self);
    if (space == NULL) return NULL;
    if (fb_enter(program, space) == 0) {
        if (bind_all(self, space, args) == 0 && keep_before(program, space) == 0 && (list == NULL || take(program, space, list) == 0)) {
            if (run(self, space) < 0) put_back(self, space, args);
            else if (bump_versions(self, args) == 0) outputs = make_outputs(program, space);
        }
        fb_clear_space(program, space);
        fb_leave(program, space);
    }
    return_space(self, space);
    return outputs;
}

/* ---- the types ---------------------------------------------------------------------------- */

static int parse_sources(Executable *self, PyObject *sources) {
    if (!PyList_Check(sources) || !PyList_Check(self->constants) || PyList_GET_SIZE(self->constants) != self->program.const_count)
        return FB_RAISE(PyExc_ValueError, "sources and constants must be lists, with one constant a slot");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->constants); i++) {
        if (!PyObject_TypeCheck(PyList_GET_ITEM(self->constants, i), fb_tensor_type)) return FB_RAISE(PyExc_TypeError, "constants must be tensors");
    }
    self->source_count = (int)PyList_GET_SIZE(sources);
    self->sources = calloc(self->source_count + 1, sizeof *self->sources);
    self->stamps = calloc(self->source_count + 1, sizeof *self->stamps);
    if (self->sources == NULL || self->stamps == NULL) return PyErr_NoMemory(), -1;
    for (int i = 0; i < self->source_count; i++) {
        long position = PyLong_AsLong(PyList_GET_ITEM(sources, i));
        if (PyErr_Occurred()) return -1;
        if (position < 0 || position >= self->program.const_count)
            return FB_RAISE(PyExc_ValueError, "a source is not a constant");
        self->sources[i] = (int)position;
    }
    return 0;
}

static PyObject *executable_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"table", "kernels", "resolve", "constants", "sources", "refresh", "changed", "libraries", "labels", "keep_memory", "recorder", "forced", NULL};
    PyObject *table, *kernels, *resolve, *constants, *sources, *refresh, *changed, *libraries, *labels = NULL, *recorder = NULL;
    int keep_memory = 0, forced = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OO!OOOO|O!pOp:Executable", names, &PyDict_Type, &table, &PyDict_Type, &kernels, &resolve,
                                     &PyList_Type, &constants, &sources, &refresh, &changed, &libraries, &PyList_Type,
                                     &labels, &keep_memory, &recorder, &forced))
        return NULL;
    Executable *self = (Executable *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->vectorcall = executable_call;
    self->constants = Py_NewRef(constants);
    self->refresh = Py_NewRef(refresh);
    self->changed = Py_NewRef(changed);
    self->libraries = Py_NewRef(libraries);
    if (fb_program_parse(&self->program, table, kernels, resolve) < 0 || parse_sources(self, sources) < 0 ||
        (labels != NULL && fb_program_label(&self->program, labels) < 0)) {
        Py_DECREF(self);
        return NULL;
    }
    self->program.keeps_memory = keep_memory;
    self->forced = forced;
    int recordable = recorder == NULL || recorder == Py_None ? 0 : fb_recordable(self);
    if (recordable > 0) self->recorder = Py_NewRef(recorder);
    PyObject *rows = recordable > 0 ? PyObject_GetAttrString(recorder, "branches") : NULL;
    self->branches = rows != NULL && PyObject_IsTrue(rows) > 0;
    Py_XDECREF(rows);
    if (recordable >= 0) PyErr_Clear();
    if (recordable < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static int executable_traverse(Executable *self, visitproc visit, void *arg) {
    Py_VISIT(self->constants);
    Py_VISIT(self->derived);
    Py_VISIT(self->refresh);
    Py_VISIT(self->changed);
    Py_VISIT(self->libraries);
    return fb_program_traverse(&self->program, visit, arg);
}

static int executable_clear(Executable *self) {
    Py_CLEAR(self->refresh);
    return 0;
}

static void executable_dealloc(Executable *self) {
    PyObject_GC_UnTrack(self);
    while (self->spaces != NULL) {
        Space *next = self->spaces->next;
        fb_free_space(&self->program, self->spaces);
        self->spaces = next;
    }
    fb_recordings_clear(self);
    Py_CLEAR(self->recorder);
    free(self->stamps);
    free(self->sources);
    fb_program_clear(&self->program);
    Py_CLEAR(self->constants);
    Py_CLEAR(self->derived);
    Py_CLEAR(self->refresh);
    Py_CLEAR(self->changed);
    Py_CLEAR(self->libraries);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* How each library call reaches torch, for tests and reports: (op, "direct" | "dispatch" | "python"). */
static PyObject *executable_routes(Executable *self, PyObject *none) {
    static const char *const routes[] = {"direct", "dispatch", "python"};
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < self->program.step_count; i++) {
        const Step *step = &self->program.steps[i];
        if (step->kind != STEP_CALL) continue;
        PyObject *row = Py_BuildValue("(ss)", step->call->name, routes[step->call->route]);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyMethodDef executable_methods[] = {
    {"routes", (PyCFunction)executable_routes, METH_NOARGS, "(op, route) of each library call."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject executable_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.Executable",
    .tp_doc = "A compiled graph: called with the graph's tensor inputs, or a list that it may empty, returns the tuple of its outputs.",
    .tp_basicsize = sizeof(Executable),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = executable_new,
    .tp_dealloc = (destructor)executable_dealloc,
    .tp_traverse = (traverseproc)executable_traverse,
    .tp_clear = (inquiry)executable_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Executable, vectorcall),
    .tp_methods = executable_methods,
};

int fb_host_init(PyObject *module) {
    int32_t (*strided)(void);
    void *symbol = dlsym(fb_torch_library(), "aoti_torch_layout_strided");
    if (fb_libcall_init() < 0) return -1;
    fb_cpu_init();
    if (symbol != NULL) {
        memcpy(&strided, &symbol, sizeof strided);
        strided_layout = strided();
    }
    if (PyModule_AddType(module, &executable_type) < 0 || fb_cuda_init(module) < 0 || fb_driven_init(module) < 0) return -1;
    return fb_library_init(module);
}
