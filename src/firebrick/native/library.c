/* Library: machine code of kernels, loaded from bytes that were verified, never from a file that others may change. */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    void *handle;
} Library;

/* A path of the descriptor that no earlier library was opened by: the loader knows libraries by their path. */
static void unique_path(int descriptor, char *path, size_t size) {
    static unsigned opened;
    size_t used = (size_t)snprintf(path, size, "/proc/self/");
    for (unsigned bits = ++opened; bits != 0 && used + 32 < size; bits >>= 1) {
        used += (size_t)snprintf(path + used, size - used, "%s", bits & 1 ? "./" : "/");
    }
    snprintf(path + used, size - used, "fd/%d", descriptor);
}

static PyObject *library_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"code", "name", NULL};
    const char *code, *name = "kernels";
    Py_ssize_t size, written = 0;
    char path[160];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#|s:Library", names, &code, &size, &name)) return NULL;
    int descriptor = memfd_create(name, MFD_CLOEXEC);
    if (descriptor < 0) return PyErr_SetFromErrno(PyExc_OSError);
    while (written < size) {
        ssize_t step = write(descriptor, code + written, (size_t)(size - written));
        if (step <= 0) {
            close(descriptor);
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        written += step;
    }
    unique_path(descriptor, path, sizeof path);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    close(descriptor);
    if (handle == NULL) return PyErr_Format(PyExc_OSError, "can't load kernels: %s", dlerror());
    Library *self = (Library *)type->tp_alloc(type, 0);
    if (self == NULL) dlclose(handle);
    else self->handle = handle;
    return (PyObject *)self;
}

static void library_dealloc(Library *self) {
    if (self->handle != NULL) dlclose(self->handle);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *library_symbol(Library *self, PyObject *name) {
    const char *text = PyUnicode_AsUTF8(name);
    void *symbol = text == NULL ? NULL : dlsym(self->handle, text);
    if (text == NULL) return NULL;
    if (symbol == NULL) return PyErr_Format(PyExc_KeyError, "no function %s", text);
    return PyLong_FromVoidPtr(symbol);
}

static PyMethodDef library_methods[] = {
    {"symbol", (PyCFunction)library_symbol, METH_O, "Address of a function."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject library_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.Library",
    .tp_doc = "Machine code loaded from the bytes of a shared library.",
    .tp_basicsize = sizeof(Library),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = library_new,
    .tp_dealloc = (destructor)library_dealloc,
    .tp_methods = library_methods,
};

int fb_library_init(PyObject *module) { return PyModule_AddType(module, &library_type); }
