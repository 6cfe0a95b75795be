/* What guards ask of several values at once. */
#define _GNU_SOURCE
#include "plan.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ---- identity and memory of tensors ---------------------------------------------------- */

enum { FEW = 16 };

static int all_distinct(const Group *group, PyObject *const *values) {
    if (group->count <= FEW) {
        for (int32_t i = 1; i < group->count; i++) {
            for (int32_t j = 0; j < i; j++) {
                if (values[group->nodes[i]] == values[group->nodes[j]]) return 0;
            }
        }
        return 1;
    }
    size_t size = 32;
    while (size < 2 * (size_t)group->count) size *= 2;
    PyObject **table = PyMem_Calloc(size, sizeof *table);
    int distinct = table != NULL;
    for (int32_t i = 0; i < group->count && distinct; i++) {
        PyObject *value = values[group->nodes[i]];
        size_t place = ((uintptr_t)value >> 4) * 0x9E3779B97F4A7C15u >> 20;
        for (place &= size - 1; table[place] != NULL && distinct; place = (place + 1) & (size - 1)) distinct = table[place] != value;
        table[place] = value;
    }
    PyMem_Free(table);
    return distinct;
}

static size_t (*element_size)(int32_t dtype);

/* The bytes from the first to the last element; 0 for a tensor without elements or memory, -1 when unknown. */
static int64_t extent(PyObject *tensor, char **start) {
    FbHandle handle = FB_HANDLE(tensor);
    int64_t dim, *sizes, *strides, last = 0;
    int32_t dtype;
    if (element_size == NULL) element_size = (size_t(*)(int32_t))dlsym(fb_torch_library(), "aoti_torch_dtype_element_size");
    if (element_size == NULL || !PyObject_TypeCheck(tensor, fb_tensor_type) || fb_torch.get_data_ptr(handle, (void **)start) != 0 ||
        fb_torch.get_dim(handle, &dim) != 0 || fb_torch.get_sizes(handle, &sizes) != 0 || fb_torch.get_strides(handle, &strides) != 0 ||
        fb_torch.get_dtype(handle, &dtype) != 0) {
        return -1;
    }
    for (int64_t i = 0; i < dim; i++) {
        if (sizes[i] == 0) return 0;
        last += (sizes[i] - 1) * strides[i];
    }
    return *start == NULL ? 0 : (last + 1) * (int64_t)element_size(dtype);
}

PyObject *fb_tensor_span(PyObject *self, PyObject *tensor) {
    int32_t (*storage_size)(FbHandle, int64_t *) = (int32_t(*)(FbHandle, int64_t *))dlsym(fb_torch_library(), "aoti_torch_get_storage_size");
    char *start;
    int64_t size = extent(tensor, &start), offset, stored, item;
    int32_t dtype;
    if (size < 0 || storage_size == NULL || storage_size(FB_HANDLE(tensor), &stored) != 0 ||
        fb_torch.get_storage_offset(FB_HANDLE(tensor), &offset) != 0 || fb_torch.get_dtype(FB_HANDLE(tensor), &dtype) != 0)
        return PyErr_Format(PyExc_TypeError, "the memory of this value is unknown");
    item = (int64_t)element_size(dtype);
    return Py_BuildValue("(LLL)", (long long)(intptr_t)start, (long long)(intptr_t)(start + size),
                         (long long)(intptr_t)(start - offset * item + stored));
}

typedef struct {
    char *start, *end;
} Span;

static int by_start(const void *a, const void *b) {
    const char *one = ((const Span *)a)->start, *two = ((const Span *)b)->start;
    return (one > two) - (one < two);
}

/* Of spans in order, two overlap only if two neighbours do. An optimizer's step asks this of a thousand tensors. */
static int none_overlap(const Group *group, PyObject *const *values) {
    Span few[FEW], *spans = group->count <= FEW ? few : PyMem_Malloc(group->count * sizeof *spans);
    int32_t count = 0, apart = spans != NULL;
    for (int32_t i = 0; i < group->count && apart; i++) {
        int64_t size = extent(values[group->nodes[i]], &spans[count].start);
        spans[count].end = spans[count].start + size;
        apart = size >= 0;
        count += size > 0;
    }
    if (apart) qsort(spans, count, sizeof *spans, by_start);
    for (int32_t i = 1; i < count && apart; i++) apart = spans[i - 1].end <= spans[i].start;
    if (spans != few) PyMem_Free(spans);
    return apart;
}

/* ---- shapes ---------------------------------------------------------------------------- */

enum { STACK = 32 };

static int leaf(int op, PyObject *value, int64_t index, int64_t *number) {
    int64_t dim, *numbers;
    if (op == SHAPE_INT) {
        int overflow = 0;
        if (!PyLong_CheckExact(value)) return 0;
        *number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return overflow == 0;
    }
    if (!PyObject_TypeCheck(value, fb_tensor_type)) return 0;
    FbHandle handle = FB_HANDLE(value);
    if (op == SHAPE_OFFSET) return fb_torch.get_storage_offset(handle, number) == 0;
    if (fb_torch.get_dim(handle, &dim) != 0 || index < 0 || index >= dim) return 0;
    if ((op == SHAPE_SIZE ? fb_torch.get_sizes : fb_torch.get_strides)(handle, &numbers) != 0) return 0;
    *number = numbers[index];
    return 1;
}

/* Python's division: rounds down, the remainder has the divisor's sign. */
static int divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder) {
    if (b == 0 || (a == INT64_MIN && b == -1)) return 0;
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder != 0 && (*remainder < 0) != (b < 0)) {
        *quotient -= 1;
        *remainder += b;
    }
    return 1;
}

static int operate(int op, int64_t a, int64_t b, int64_t *result) {
    int64_t unused;
    switch (op) {
    case SHAPE_ADD: return !__builtin_add_overflow(a, b, result);
    case SHAPE_SUB: return !__builtin_sub_overflow(a, b, result);
    case SHAPE_MUL: return !__builtin_mul_overflow(a, b, result);
    case SHAPE_FLOORDIV: return divide(a, b, result, &unused);
    case SHAPE_MOD: return divide(a, b, &unused, result);
    case SHAPE_MIN: *result = a < b ? a : b; return 1;
    case SHAPE_MAX: *result = a > b ? a : b; return 1;
    case SHAPE_EQ: *result = a == b; return 1;
    case SHAPE_NE: *result = a != b; return 1;
    case SHAPE_LT: *result = a < b; return 1;
    case SHAPE_LE: *result = a <= b; return 1;
    case SHAPE_AND: *result = a && b; return 1;
    case SHAPE_OR: *result = a || b; return 1;
    default: return 0;
    }
}

/* A number that can't be computed in 64 bits makes the guard fail. */
static int shape_holds(const Group *group, PyObject *const *values) {
    int64_t stack[STACK];
    int depth = 0;
    for (Py_ssize_t i = 0; i < group->length; i++) {
        const int64_t *step = &group->program[3 * i];
        if (step[0] == SHAPE_CONST) {
            stack[depth++] = step[1];
        } else if (step[0] <= SHAPE_INT) {
            if (!leaf((int)step[0], values[group->nodes[step[1]]], step[2], &stack[depth++])) return 0;
        } else if (step[0] == SHAPE_NOT) {
            stack[depth - 1] = !stack[depth - 1];
        } else {
            depth--;
            if (!operate((int)step[0], stack[depth - 1], stack[depth], &stack[depth - 1])) return 0;
        }
    }
    return stack[0] != 0;
}

/* Whether the program leaves one number, and never takes what is not there. */
static int program_is_legal(const Group *group) {
    int depth = 0;
    for (Py_ssize_t i = 0; i < group->length; i++) {
        const int64_t *step = &group->program[3 * i];
        if (step[0] < 0 || step[0] >= SHAPE_COUNT) return 0;
        if (step[0] > SHAPE_CONST && step[0] <= SHAPE_INT && (step[1] < 0 || step[1] >= group->count)) return 0;
        if (step[0] <= SHAPE_INT) depth++;
        else if (step[0] != SHAPE_NOT) depth--;
        if (depth < 1 || depth > STACK) return 0;
    }
    return depth == 1;
}

/* ---- groups ------------------------------------------------------------------------------ */

int fb_group_holds(const Group *group, PyObject *const *values) {
    switch (group->kind) {
    case GROUP_DISTINCT: return all_distinct(group, values);
    case GROUP_NO_OVERLAP: return none_overlap(group, values);
    case GROUP_SHAPE: return shape_holds(group, values);
    default: return 0;
    }
}

int fb_group_make(Group *group, PyObject *row, int32_t node_count) {
    PyObject *nodes, *program;
    if (!PyArg_ParseTuple(row, "iO!O!", &group->kind, &PyTuple_Type, &nodes, &PyTuple_Type, &program)) return -1;
    group->count = (int32_t)PyTuple_GET_SIZE(nodes);
    group->length = PyTuple_GET_SIZE(program) / 3;
    group->nodes = PyMem_Calloc((size_t)group->count + 1, sizeof *group->nodes);
    group->program = PyMem_Calloc(3 * (size_t)group->length + 1, sizeof *group->program);
    if (group->nodes == NULL || group->program == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int legal = group->kind >= 0 && group->kind < GROUP_COUNT && PyTuple_GET_SIZE(program) % 3 == 0;
    for (int32_t i = 0; i < group->count; i++) {
        group->nodes[i] = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(nodes, i));
        legal &= group->nodes[i] >= 0 && group->nodes[i] < node_count;
    }
    for (Py_ssize_t i = 0; i < 3 * group->length; i++) group->program[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(program, i));
    if (PyErr_Occurred()) return -1;
    if (!legal || (group->kind == GROUP_SHAPE && !program_is_legal(group)))
        return FB_RAISE(PyExc_ValueError, "a group of a plan is malformed: %R", row);
    return 0;
}

void fb_group_clear(Group *group) {
    PyMem_Free(group->nodes);
    PyMem_Free(group->program);
}
