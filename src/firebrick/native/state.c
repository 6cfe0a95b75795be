/* Torch's global state as numbers. Functions of libtorch are used where they are found and agree with torch's
 * Python functions at import; else the Python functions are called.
 */
#define _GNU_SOURCE
#include "plan.h"

#include <dlfcn.h>
#include <string.h>

/* Python functions of torch, each the fallback of one kind. */
static PyObject *readers[STATE_COUNT];

static int64_t read_python(int kind) {
    PyObject *answer = readers[kind] == NULL ? NULL : PyObject_CallNoArgs(readers[kind]);
    int64_t value = answer == NULL ? -1 : PyLong_AsLongLong(answer);
    Py_XDECREF(answer);
    if (PyErr_Occurred()) PyErr_Clear();
    return value;
}

int64_t fb_state_read(int kind) {
    if (kind == STATE_GRAD_MODE) return fb_torch.grad_mode_is_enabled() != 0;
    return kind >= 0 && kind < STATE_COUNT ? read_python(kind) : -1;
}

static PyObject *state_read(PyObject *self, PyObject *number) {
    long kind = PyLong_AsLong(number);
    if (kind == -1 && PyErr_Occurred()) return NULL;
    return PyLong_FromLongLong(fb_state_read((int)kind));
}

static PyObject *set_state_readers(PyObject *self, PyObject *functions) {
    if (!PyTuple_Check(functions) || PyTuple_GET_SIZE(functions) != STATE_COUNT) {
        PyErr_Format(PyExc_ValueError, "expected a tuple of %d functions", STATE_COUNT);
        return NULL;
    }
    for (int i = 0; i < STATE_COUNT; i++) Py_XSETREF(readers[i], Py_NewRef(PyTuple_GET_ITEM(functions, i)));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"state_read", state_read, METH_O, "One kind of torch's global state as a number."},
    {"set_state_readers", set_state_readers, METH_O, "Python functions, one a kind, that read torch's global state as numbers."},
    {NULL, NULL, 0, NULL},
};

int fb_state_init(PyObject *module) { return PyModule_AddFunctions(module, methods); }
