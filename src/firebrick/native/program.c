/* Reads the host table, plain data made by host/table.py, into structs that are cheap to run. */
#include "host.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static Dtype dtypes[] = {
    {"f32", "aoti_torch_dtype_float32", 4, -1},        {"f64", "aoti_torch_dtype_float64", 8, -1},
    {"f16", "aoti_torch_dtype_float16", 2, -1},        {"bf16", "aoti_torch_dtype_bfloat16", 2, -1},
    {"i64", "aoti_torch_dtype_int64", 8, -1},          {"i32", "aoti_torch_dtype_int32", 4, -1},
    {"i16", "aoti_torch_dtype_int16", 2, -1},          {"i8", "aoti_torch_dtype_int8", 1, -1},
    {"u8", "aoti_torch_dtype_uint8", 1, -1},           {"u16", "aoti_torch_dtype_uint16", 2, -1},
    {"u32", "aoti_torch_dtype_uint32", 4, -1},         {"u64", "aoti_torch_dtype_uint64", 8, -1},
    {"b8", "aoti_torch_dtype_bool", 1, -1},            {"c32", "aoti_torch_dtype_complex32", 4, -1},
    {"c64", "aoti_torch_dtype_complex64", 8, -1},      {"c128", "aoti_torch_dtype_complex128", 16, -1},
    {"f8e4m3", "aoti_torch_dtype_float8_e4m3fn", 1, -1}, {"f8e5m2", "aoti_torch_dtype_float8_e5m2", 1, -1},
};

const Dtype *fb_dtype(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name) != 0) continue;
        if (dtypes[i].code < 0) {
            void *symbol = dlsym(fb_torch_library(), dtypes[i].symbol);
            int32_t (*code)(void);
            memcpy(&code, &symbol, sizeof code);
            if (symbol != NULL) dtypes[i].code = code();
        }
        if (dtypes[i].code >= 0) return &dtypes[i];
    }
    return (void *)PyErr_Format(PyExc_ValueError, "dtype %s is unknown here", name);
}

void *fb_program_alloc(Program *program, size_t size) {
    Block *block = calloc(1, sizeof(Block) + size + 16);
    if (block == NULL) return PyErr_NoMemory();
    block->next = program->blocks;
    program->blocks = block;
    return (char *)(((uintptr_t)(block + 1) + 15) & ~(uintptr_t)15);
}

void fb_program_clear(Program *program) {
    Block *block = program->blocks;
    program->blocks = NULL;
    Py_CLEAR(program->keep);
    while (block != NULL) {
        Block *next = block->next;
        free(block);
        block = next;
    }
}

int fb_program_traverse(Program *program, visitproc visit, void *arg) {
    Py_VISIT(program->keep);
    return 0;
}

/* ---- reading Python values -------------------------------------------------- */

PyObject *fb_item(PyObject *sequence, Py_ssize_t position) {
    if (PyList_Check(sequence) && position < PyList_GET_SIZE(sequence)) return PyList_GET_ITEM(sequence, position);
    if (PyTuple_Check(sequence) && position < PyTuple_GET_SIZE(sequence)) return PyTuple_GET_ITEM(sequence, position);
    return PyErr_Format(PyExc_ValueError, "host table: %R has no item %zd", sequence, position);
}

static Py_ssize_t length(PyObject *sequence) {
    if (sequence != NULL && PyList_Check(sequence)) return PyList_GET_SIZE(sequence);
    if (sequence != NULL && PyTuple_Check(sequence)) return PyTuple_GET_SIZE(sequence);
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "host table: %R is not a list", sequence == NULL ? Py_None : sequence);
    return -1;
}

static PyObject *field(PyObject *table, const char *name) {
    PyObject *value = PyDict_GetItemString(table, name);
    if (value == NULL) PyErr_Format(PyExc_ValueError, "host table: no %s", name);
    return value;
}

static const char *text(PyObject *value) {
    if (value == NULL) return NULL;
    if (!PyUnicode_Check(value))
        return (void *)PyErr_Format(PyExc_ValueError, "host table: %R is not text", value);
    return PyUnicode_AsUTF8(value);
}

/* A new object, which lives as long as the program from here on; NULL with an exception set. */
static PyObject *kept(Program *program, PyObject *made) {
    int status = made == NULL ? -1 : PyList_Append(program->keep, made);
    Py_XDECREF(made);
    return status < 0 ? NULL : made;
}

/* An object's text that lives as long as the program. */
static const char *kept_text(Program *program, PyObject *value) {
    const char *found = text(value);
    if (found != NULL && PyList_Append(program->keep, value) < 0) return NULL;
    return found;
}

static int index_below(PyObject *value, int limit, int *out) {
    long number = value == NULL ? -1 : PyLong_AsLong(value);
    if (PyErr_Occurred()) return -1;
    if (number < 0 || number >= limit)
        return FB_RAISE(PyExc_ValueError, "host table: %ld is not below %d", number, limit);
    *out = (int)number;
    return 0;
}

/* Room for something of each item of a list; their number, -1 with an exception set. */
static int parse_rows(Program *program, PyObject *list, size_t size, void *items, int *count) {
    Py_ssize_t n = length(list);
    void *room = n < 0 ? NULL : fb_program_alloc(program, n * size);
    if (room == NULL) return -1;
    memcpy(items, &room, sizeof room);
    return *count = (int)n;
}

/* A number, or [register]. */
static int parse_num(Program *program, PyObject *value, Num *out) {
    if (value == NULL) return -1;
    out->reg = -1;
    out->value = 0;
    if (PyLong_Check(value)) {
        out->value = PyLong_AsLongLong(value);
        return PyErr_Occurred() ? -1 : 0;
    }
    int reg;
    if (index_below(fb_item(value, 0), program->register_count, &reg) < 0) return -1;
    out->reg = reg;
    program->varying++;
    return 0;
}

static int parse_nums(Program *program, PyObject *list, Nums *out) {
    const int n = parse_rows(program, list, sizeof(Num), &out->items, &out->count);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        if (parse_num(program, fb_item(list, i), &out->items[i]) < 0) return -1;
    }
    return 0;
}

/* Sizes, and strides in the item behind. */
static int parse_layout(Program *program, PyObject *row, int place, Nums *sizes, Nums *strides) {
    if (parse_nums(program, fb_item(row, place), sizes) < 0 || parse_nums(program, fb_item(row, place + 1), strides) < 0) return -1;
    if (sizes->count == strides->count) return 0;
    return FB_RAISE(PyExc_ValueError, "host table: sizes and strides differ in number");
}

static int parse_indices(Program *program, PyObject *list, int limit, int **out, int *count) {
    const int n = parse_rows(program, list, sizeof(int), out, count);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        PyObject *value = fb_item(list, i);
        if (value == Py_None) {
            (*out)[i] = -1;
        } else if (index_below(value, limit, &(*out)[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- sections of the table ---------------------------------------------------- */

static int parse_registers(Program *program, PyObject *list) {
    const int n = parse_rows(program, list, sizeof(RegisterOp), &program->registers, &program->register_count);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        PyObject *row = fb_item(list, i);
        const char *op = row == NULL ? NULL : text(fb_item(row, 0));
        if (op == NULL) return -1;
        if (strchr("s+*/%<>", *op) == NULL || op[0] == 0 || op[1] != 0)
            return FB_RAISE(PyExc_ValueError, "host table: no operation %s", op);
        program->registers[i].op = *op;
        /* Operands are earlier registers only. */
        program->register_count = i;
        if (parse_num(program, fb_item(row, 1), &program->registers[i].a) < 0) return -1;
        if (parse_num(program, fb_item(row, 2), &program->registers[i].b) < 0) return -1;
    }
    program->register_count = n;
    return 0;
}

/* The position of a device among the program's: "cpu", "cuda:1". */
static int parse_device(Program *program, const char *text, int *position) {
    char name[16] = "";
    const char *colon = text == NULL ? NULL : strchr(text, ':');
    if (text == NULL) return -1;
    for (size_t i = 0; i + 1 < sizeof name && text[i] != 0 && text[i] != ':'; i++) name[i] = text[i];
    const FbMachine *machine = fb_machine(name);
    int32_t index = colon == NULL ? 0 : (int32_t)strtol(colon + 1, NULL, 10);
    if (machine == NULL) return -1;
    for (*position = 0; *position < program->device_count; ++*position) {
        const Device *device = &program->devices[*position];
        if (device->machine == machine && (device->index == index || machine == &fb_cpu)) return 0;
    }
    if (program->device_count == MOST_DEVICES) return FB_RAISE(PyExc_ValueError, "host table: more than %d devices", MOST_DEVICES);
    program->devices[program->device_count++] = (Device){machine, fb_machine_code(machine), index};
    return 0;
}

static int parse_slots(Program *program, PyObject *list) {
    static const char *const kinds[] = {"input", "const", "derived", "arena", "fresh", "call", "scratch"};
    int counts[7] = {0};
    const int n = parse_rows(program, list, sizeof(Slot), &program->slots, &program->slot_count);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        Slot *slot = &program->slots[i];
        PyObject *row = fb_item(list, i);
        const char *kind = row == NULL ? NULL : text(fb_item(row, 0)), *dtype = row == NULL ? NULL : text(fb_item(row, 1));
        const char *device = row == NULL ? NULL : text(fb_item(row, 5));
        int found = -1;
        if (kind == NULL || dtype == NULL || device == NULL) return -1;
        for (int k = 0; k < 7; k++) {
            if (strcmp(kind, kinds[k]) == 0) found = k;
        }
        if (found < 0) return FB_RAISE(PyExc_ValueError, "host table: no kind of slot %s", kind);
        slot->kind = (SlotKind)found;
        slot->index = counts[found]++;
        slot->dtype = fb_dtype(dtype);
        if (slot->dtype == NULL) return -1;
        if (parse_device(program, device, &slot->device) < 0) return -1;
        if (parse_layout(program, row, 2, &slot->sizes, &slot->strides) < 0 || parse_num(program, fb_item(row, 4), &slot->offset) < 0) return -1;
    }
    int **lists[] = {&program->inputs, &program->consts, &program->derived};
    int *totals[] = {&program->input_count, &program->const_count, &program->derived_count};
    for (int k = 0; k < 3; k++) {
        *lists[k] = fb_program_alloc(program, counts[k] * sizeof(int));
        *totals[k] = counts[k];
        if (*lists[k] == NULL) return -1;
        for (int i = 0; i < n; i++) {
            if ((int)program->slots[i].kind == k) (*lists[k])[program->slots[i].index] = i;
        }
    }
    return 0;
}

static int same_num(Num a, Num b) { return a.reg == b.reg && a.value == b.value; }

static int parse_views(Program *program, PyObject *list) {
    const int n = parse_rows(program, list, sizeof(View), &program->views, &program->view_count);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        View *view = &program->views[i];
        PyObject *row = fb_item(list, i), *dtype = row == NULL ? NULL : fb_item(row, 4);
        if (dtype == NULL || index_below(fb_item(row, 0), program->slot_count, &view->slot) < 0) return -1;
        const Slot *slot = &program->slots[view->slot];
        view->dtype = dtype == Py_None ? slot->dtype : fb_dtype(text(dtype) == NULL ? "" : text(dtype));
        if (view->dtype == NULL) return -1;
        const int varying = program->varying;
        if (parse_layout(program, row, 1, &view->sizes, &view->strides) < 0 || parse_num(program, fb_item(row, 3), &view->offset) < 0) return -1;
        view->varies = program->varying > varying;
        int whole = view->dtype == slot->dtype && view->offset.reg < 0 && view->offset.value == 0 && view->sizes.count == slot->sizes.count;
        for (int d = 0; d < view->sizes.count; d++) {
            whole = whole && same_num(view->sizes.items[d], slot->sizes.items[d]) && same_num(view->strides.items[d], slot->strides.items[d]);
        }
        view->retyped = view->dtype != slot->dtype;
        view->whole = whole && slot->kind != SLOT_ARENA;
        const int lasts = slot->kind == SLOT_CONST || slot->kind == SLOT_DERIVED || (slot->kind == SLOT_ARENA && slot->offset.reg < 0);
        view->lasting = lasts && !view->varies && !view->whole;
    }
    return 0;
}

/* ---- library calls ---------------------------------------------------------------- */

static int parse_arg(Program *program, PyObject *row, PyObject *resolve, Arg *arg);

static int parse_args(Program *program, PyObject *list, PyObject *resolve, Arg **out, int *count) {
    const int n = parse_rows(program, list, sizeof(Arg), out, count);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        if (parse_arg(program, fb_item(list, i), resolve, &(*out)[i]) < 0) return -1;
    }
    return 0;
}

/* resolve(kind, name) -> Python's object for a dtype, device, layout or memory_format; the C ABI has a function
 * "aoti_torch_<kind>_<name>" that tells torch's number for it, -1 where it has none. */
static int parse_enum(Program *program, PyObject *row, PyObject *resolve, Arg *arg) {
    char symbol[96];
    int32_t (*code)(void);
    const char *kind = text(fb_item(row, 1)), *name = kind == NULL ? NULL : text(fb_item(row, 2));
    arg->object = name == NULL ? NULL : kept(program, PyObject_CallFunction(resolve, "ss", kind, name));
    if (arg->object == NULL) return -1;
    snprintf(symbol, sizeof symbol, "aoti_torch_%s_%s", kind, name);
    void *found = dlsym(fb_torch_library(), symbol);
    memcpy(&code, &found, sizeof code);
    arg->num.reg = -1;
    arg->num.value = found == NULL ? -1 : code();
    return 0;
}

static int parse_arg(Program *program, PyObject *row, PyObject *resolve, Arg *arg) {
    const char *tag = row == NULL ? NULL : text(fb_item(row, 0));
    PyObject *value = NULL;
    if (tag == NULL) return -1;
    if (*tag != 'n' && (value = fb_item(row, 1)) == NULL) return -1;
    switch (*tag) {
    case 'n': arg->kind = ARG_NONE; return 0;
    case 't':
        arg->kind = ARG_VIEW;
        if (index_below(value, program->view_count, &arg->view) == 0) program->varying += program->views[arg->view].varies;
        return PyErr_Occurred() ? -1 : 0;
    case 'i': arg->kind = ARG_INT; return parse_num(program, value, &arg->num);
    case 'l': arg->kind = ARG_LIST; return parse_args(program, value, resolve, &arg->items, &arg->count);
    case 'e': arg->kind = ARG_ENUM; return parse_enum(program, row, resolve, arg);
    case 'b':
        arg->kind = ARG_BOOL;
        arg->num.reg = -1;
        arg->num.value = value == Py_True;
        break;
    case 'f':
        arg->kind = ARG_FLOAT;
        arg->real = PyFloat_AsDouble(value);
        if (PyErr_Occurred()) return -1;
        break;
    case 's':
        arg->kind = ARG_STR;
        arg->text = text(value);
        if (arg->text == NULL) return -1;
        break;
    default: PyErr_Format(PyExc_ValueError, "host table: no kind of argument %s", tag); return -1;
    }
    arg->object = value;
    return PyList_Append(program->keep, value);
}

/* "T", "i[]", "T?[]", "d?": a letter, then ? for items that may be None, [] for a list, ? for a whole that may be None. */
static Type parse_type(const char *from) {
    const char *list = strstr(from, "[]"), *end = list != NULL ? list + 2 : from + (from[0] != 0);
    return (Type){from[0], list != NULL, *end == '?', list != NULL && list > from + 1};
}

/* ["call", op, args, types, positional, keywords, outs, into, plain], then of some a slot and another call */
static Call *parse_call(Program *program, PyObject *row, PyObject *resolve) {
    Call *call = fb_program_alloc(program, sizeof(Call));
    const char *op = kept_text(program, fb_item(row, 1));
    if (call == NULL || op == NULL) return NULL;
    const char *dot = strrchr(op, '.');
    size_t stem = dot == NULL ? strlen(op) : (size_t)(dot - op);
    char *name = fb_program_alloc(program, strlen(op) + 1);
    if (name == NULL) return NULL;
    memcpy(name, op, stem);
    call->name = name;
    call->overload = dot == NULL || strcmp(dot + 1, "default") == 0 ? "" : dot + 1;
    const int varying = program->varying;
    if (parse_args(program, fb_item(row, 2), resolve, &call->args, &call->count) < 0) return NULL;
    call->varies = program->varying > varying;
    PyObject *types = fb_item(row, 3);
    if (length(types) != call->count) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "host table: %s has other types than arguments", op);
        return NULL;
    }
    call->types = fb_program_alloc(program, call->count * sizeof(Type));
    if (call->types == NULL) return NULL;
    for (int i = 0; i < call->count; i++) {
        const char *type = text(fb_item(types, i));
        if (type == NULL) return NULL;
        call->types[i] = parse_type(type);
    }
    if (index_below(fb_item(row, 4), call->count + 1, &call->positional) < 0) return NULL;
    PyObject *keywords = fb_item(row, 5);
    call->keywords = keywords == NULL ? NULL : kept(program, PySequence_Tuple(keywords));
    if (call->keywords == NULL) return NULL;
    if (PyTuple_GET_SIZE(call->keywords) != call->count - call->positional)
        return (void *)PyErr_Format(PyExc_ValueError, "host table: %s has other keywords than arguments", op);
    if (parse_indices(program, fb_item(row, 6), program->slot_count, &call->outs, &call->out_count) < 0) return NULL;
    call->into = fb_item(row, 7) == Py_True;
    call->plain = fb_item(row, 8) == Py_True;
    if (PyErr_Occurred()) return NULL;
    call->function = kept(program, PyObject_CallFunction(resolve, "ss", "op", op));
    if (call->function == NULL) return NULL;
    fb_call_route(program, call);
    return call;
}

/* ["kernel", name, slots, sizes, device, grid]; kernels maps names to addresses. */
static int parse_launch(Program *program, PyObject *row, PyObject *kernels, Step *step) {
    PyObject *name = fb_item(row, 1), *address = name == NULL ? NULL : PyDict_GetItem(kernels, name);
    if (address == NULL) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "host table: kernel %S was not built", name);
        return -1;
    }
    step->kernel = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred() || parse_device(program, text(fb_item(row, 4)), &step->device) < 0) return -1;
    if (parse_indices(program, fb_item(row, 2), program->slot_count, &step->slots, &step->count) < 0) return -1;
    if (parse_nums(program, fb_item(row, 3), &step->sizes) < 0 || parse_nums(program, fb_item(row, 5), &step->grid) < 0) return -1;
    if (step->grid.count > 3)
        return FB_RAISE(PyExc_ValueError, "host table: a grid has three axes at most");
    int *places, count = 0;
    if (length(row) > 6 && parse_indices(program, fb_item(row, 6), step->count, &places, &count) < 0) return -1;
    if (count > 0 && (step->values = fb_program_alloc(program, step->count)) == NULL) return -1;
    while (count-- > 0) step->values[places[count]] = 1;
    if (step->count > program->widest_launch) program->widest_launch = step->count;
    if (step->sizes.count > program->widest_launch) program->widest_launch = step->sizes.count;
    return 0;
}

/* ["check", slot, low, high, error, text before the index, text after it or null] */
static int parse_check(Program *program, PyObject *row, Step *step) {
    int *slot = fb_program_alloc(program, sizeof(int));
    const char *error = text(fb_item(row, 4));
    PyObject *after = fb_item(row, 6);
    if (slot == NULL || error == NULL || after == NULL || index_below(fb_item(row, 1), program->slot_count, slot) < 0) return -1;
    step->slots = slot;
    step->count = 1;
    if (parse_num(program, fb_item(row, 2), &step->low) < 0 || parse_num(program, fb_item(row, 3), &step->high) < 0) return -1;
    step->error = strcmp(error, "IndexError") == 0 ? PyExc_IndexError : PyExc_RuntimeError;
    if ((step->text = kept_text(program, fb_item(row, 5))) == NULL) return -1;
    return after != Py_None && (step->after = kept_text(program, after)) == NULL ? -1 : 0;
}

static int parse_steps(Program *program, PyObject *list, PyObject *kernels, PyObject *resolve) {
    const int n = parse_rows(program, list, sizeof(Step), &program->steps, &program->step_count);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        Step *step = &program->steps[i];
        PyObject *row = fb_item(list, i);
        const char *kind = row == NULL ? NULL : text(fb_item(row, 0));
        if (kind == NULL) return -1;
        if (strcmp(kind, "kernel") == 0) {
            step->kind = STEP_KERNEL;
            step->label = kept_text(program, fb_item(row, 1));
            if (parse_launch(program, row, kernels, step) < 0) return -1;
        } else if (strcmp(kind, "call") == 0) {
            step->call = parse_call(program, row, resolve);
            if (step->call == NULL) return -1;
            step->kind = strcmp(step->call->name, "firebrick::draw") == 0 ? STEP_DRAW : STEP_CALL;
            step->label = step->call->name;
            program->calls_library = 1;
        } else if (strcmp(kind, "check") == 0) {
            step->kind = STEP_CHECK;
            if (parse_check(program, row, step) < 0) return -1;
        } else if (strcmp(kind, "alloc") == 0 || strcmp(kind, "free") == 0) {
            step->kind = *kind == 'a' ? STEP_ALLOC : STEP_FREE;
            if (parse_indices(program, fb_item(row, 1), program->slot_count, &step->slots, &step->count) < 0) return -1;
        } else {
            return FB_RAISE(PyExc_ValueError, "host table: no step %s", kind);
        }
    }
    return 0;
}

int fb_program_label(Program *program, PyObject *labels) {
    Py_ssize_t next = 0;
    for (int i = 0; i < program->step_count; i++) {
        Step *step = &program->steps[i];
        if (step->kind == STEP_ALLOC || step->kind == STEP_FREE) continue;
        PyObject *label = fb_item(labels, next++);
        if (label == NULL || (step->label = kept_text(program, label)) == NULL) return -1;
    }
    return 0;
}

static int parse_outputs(Program *program, PyObject *list) {
    const int n = parse_rows(program, list, sizeof(Output), &program->outputs, &program->output_count);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        Arg arg = {0};
        Output *output = &program->outputs[i];
        if (parse_arg(program, fb_item(list, i), Py_None, &arg) < 0) return -1;
        if (arg.kind == ARG_LIST || arg.kind == ARG_ENUM)
            return FB_RAISE(PyExc_ValueError, "host table: an output is a tensor or a number");
        output->kind = arg.kind;
        output->view = arg.view;
        output->num = arg.num;
        output->object = arg.kind == ARG_NONE ? Py_None : arg.object;
    }
    return 0;
}

int fb_program_parse(Program *program, PyObject *table, PyObject *kernels, PyObject *resolve) {
    memset(program, 0, sizeof *program);
    program->keep = PyList_New(0);
    if (program->keep == NULL) return -1;
    PyObject *registers = field(table, "registers"), *slots = field(table, "slots"), *views = field(table, "views");
    PyObject *steps = field(table, "steps"), *outputs = field(table, "outputs"), *arena = field(table, "arena");
    PyObject *release = field(table, "release_gil"), *mutated = field(table, "mutated"), *undo = field(table, "undo");
    if (mutated == NULL || registers == NULL || slots == NULL || views == NULL || steps == NULL || outputs == NULL || arena == NULL || release == NULL) return -1;
    program->release_gil = release == Py_True;
    if (parse_registers(program, registers) < 0 || parse_num(program, fb_item(arena, 0), &program->arena) < 0) return -1;
    if (parse_device(program, text(fb_item(arena, 1)), &program->arena_device) < 0) return -1;
    if (parse_slots(program, slots) < 0 || parse_views(program, views) < 0) return -1;
    if (parse_indices(program, mutated, program->slot_count, &program->mutated, &program->mutated_count) < 0) return -1;
    if (parse_steps(program, steps, kernels, resolve) < 0) return -1;
    const int most = program->slot_count + program->step_count + 1; /* a step is among them */
    if (undo == NULL || parse_indices(program, undo, most, &program->undo, &program->undo_count) < 0) return -1;
    return parse_outputs(program, outputs);
}
