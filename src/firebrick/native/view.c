/* Frame: a call of a Python function that has not started, as callbacks and tests of plans see it. */
#include "hook.h"

#include <stddef.h>
#include <structmember.h>

static PyTypeObject frame_type;

typedef struct {
    PyObject_VAR_HEAD
    PyCodeObject *code;
    PyObject *function, *globals, *builtins, *closure, *locals;
    FbFrame view;
    PyObject *values[1]; /* argument slots */
} Frame;

PyObject *fb_view_make(PyFunctionObject *function, PyObject *const *values) {
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    Py_ssize_t count = fb_argument_slots(code);
    Frame *frame = PyObject_GC_NewVar(Frame, &frame_type, count);
    if (frame == NULL) return NULL;
    frame->code = (PyCodeObject *)Py_NewRef(code);
    frame->function = Py_NewRef(function);
    frame->globals = Py_NewRef(function->func_globals);
    frame->builtins = Py_NewRef(function->func_builtins);
    frame->closure = Py_XNewRef(function->func_closure);
    frame->locals = NULL;
    for (Py_ssize_t i = 0; i < count; i++) frame->values[i] = Py_XNewRef(values[i]);
    frame->view = (FbFrame){frame->values, frame->globals, frame->builtins, frame->closure};
    PyObject_GC_Track(frame);
    return (PyObject *)frame;
}

static PyObject *frame_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *function, *values;
    static char *names[] = {"function", "values", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!:Frame", names, &PyFunction_Type, &function, &PyTuple_Type, &values)) return NULL;
    Py_ssize_t count = fb_argument_slots((PyCodeObject *)((PyFunctionObject *)function)->func_code);
    if (PyTuple_GET_SIZE(values) != count)
        return PyErr_Format(PyExc_ValueError, "the code has %zd argument slots, got %zd values", count, PyTuple_GET_SIZE(values));
    return fb_view_make((PyFunctionObject *)function, &PyTuple_GET_ITEM(values, 0));
}

static int frame_traverse(Frame *frame, visitproc visit, void *arg) {
    Py_VISIT(frame->code);
    Py_VISIT(frame->function);
    Py_VISIT(frame->globals);
    Py_VISIT(frame->builtins);
    Py_VISIT(frame->closure);
    Py_VISIT(frame->locals);
    for (Py_ssize_t i = 0; i < Py_SIZE(frame); i++) Py_VISIT(frame->values[i]);
    return 0;
}

static void frame_dealloc(Frame *frame) {
    PyObject_GC_UnTrack(frame);
    Py_XDECREF(frame->code);
    Py_XDECREF(frame->function);
    Py_XDECREF(frame->globals);
    Py_XDECREF(frame->builtins);
    Py_XDECREF(frame->closure);
    Py_XDECREF(frame->locals);
    for (Py_ssize_t i = 0; i < Py_SIZE(frame); i++) Py_XDECREF(frame->values[i]);
    PyObject_GC_Del(frame);
}

static PyObject *frame_get_locals(PyObject *self, void *unused) {
    Frame *frame = (Frame *)self;
    if (frame->locals == NULL) {
        PyObject *locals = PyDict_New();
        if (locals == NULL) return NULL;
        for (Py_ssize_t i = 0; i < Py_SIZE(frame); i++) {
            PyObject *name = PyTuple_GET_ITEM(frame->code->co_localsplusnames, i);
            if (frame->values[i] != NULL && PyDict_SetItem(locals, name, frame->values[i]) < 0) {
                Py_DECREF(locals);
                return NULL;
            }
        }
        frame->locals = locals;
    }
    return Py_NewRef(frame->locals);
}

static PyMemberDef frame_members[] = {
    {"code", T_OBJECT, offsetof(Frame, code), READONLY, "The code object."},
    {"function", T_OBJECT, offsetof(Frame, function), READONLY, "The function that was called."},
    {"globals", T_OBJECT, offsetof(Frame, globals), READONLY, "The globals of the frame."},
    {"builtins", T_OBJECT, offsetof(Frame, builtins), READONLY, "The builtins of the frame."},
    {"closure", T_OBJECT, offsetof(Frame, closure), READONLY, "Tuple of cells in the order of co_freevars, or None."},
    {NULL},
};

static PyGetSetDef frame_getset[] = {
    {"locals", frame_get_locals, NULL, "Arguments by name, *args and **kwargs among them.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject frame_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.Frame",
    .tp_basicsize = offsetof(Frame, values),
    .tp_itemsize = sizeof(PyObject *),
    .tp_new = frame_new,
    .tp_dealloc = (destructor)frame_dealloc,
    .tp_traverse = (traverseproc)frame_traverse,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Frame(function, values): a call of a Python function that has not started; values fill its argument slots.",
    .tp_members = frame_members,
    .tp_getset = frame_getset,
};

const FbFrame *fb_frame_of(PyObject *view) {
    if (Py_IS_TYPE(view, &frame_type)) return &((Frame *)view)->view;
    return (void *)PyErr_Format(PyExc_TypeError, "expected a Frame, got %.200s", Py_TYPE(view)->tp_name);
}

int fb_view_init(PyObject *module) { return PyModule_AddType(module, &frame_type); }
