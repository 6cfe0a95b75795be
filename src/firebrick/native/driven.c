/* The row of machines that Python drives: targets of plug-ins. A place in their memory is a number, as is a kernel. */
#include "devices.h"
#include "hook.h"

static PyObject *driver; /* an object with has, allocate, free and launch, which lives as long as the module */
static _Thread_local char message[512];

static int note(PyObject *result) {
    if (result != NULL) {
        Py_DECREF(result);
        return 0;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value == NULL ? NULL : PyObject_Str(value);
    const char *bytes = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    snprintf(message, sizeof message, "%s", bytes == NULL ? "the driver failed" : bytes);
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return -1;
}

/* What the driver runs is no code of the program: nothing of it is captured. */
static PyGILState_STATE begin(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    if (fb_thread != NULL) fb_thread->busy++;
    return state;
}

static void end(PyGILState_STATE state) {
    if (fb_thread != NULL) fb_thread->busy--;
    PyGILState_Release(state);
}

static int driven_enter(int index, FbWork *work) {
    work->stream = (void *)(intptr_t)index;
    return 0;
}

static void *driven_allocate(int index, int64_t bytes, FbHandle *owner) {
    PyGILState_STATE state = begin();
    PyObject *place = PyObject_CallMethod(driver, "allocate", "iL", index, (long long)bytes);
    void *memory = place == NULL ? NULL : PyLong_AsVoidPtr(place);
    *owner = NULL;
    note(place);
    end(state);
    return memory;
}

static void driven_free(void *memory, FbHandle owner) {
    PyGILState_STATE state = begin();
    note(PyObject_CallMethod(driver, "free", "N", PyLong_FromVoidPtr(memory)));
    end(state);
}

static PyObject *numbers(const int64_t *values, int count) {
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) PyList_SET_ITEM(list, i, PyLong_FromLongLong(values[i]));
    return list;
}

static int driven_launch(FbWork *work, const FbLaunch *launch) {
    PyGILState_STATE state = begin();
    PyObject *places = PyList_New(launch->buffer_count);
    for (int i = 0; places != NULL && i < launch->buffer_count; i++) PyList_SET_ITEM(places, i, PyLong_FromVoidPtr(launch->buffers[i]));
    int status = note(PyObject_CallMethod(
        driver, "launch", "iNNNN", (int)(intptr_t)work->stream, PyLong_FromVoidPtr((void *)launch->kernel), places,
        numbers(launch->sizes, launch->size_count), numbers(launch->grid, launch->grid_count)));
    end(state);
    return status;
}

static const char *driven_error(void) { return message; }

const FbMachine fb_driven = {
    .name = "",
    .symbol = "aoti_torch_device_type_cpu",
    .alignment = 1,
    .own_memory = 1,
    .enter = driven_enter,
    .allocate = driven_allocate,
    .free = driven_free,
    .launch = driven_launch,
    .error = driven_error,
};

int fb_is_driven(const char *name) {
    PyObject *known = driver == NULL ? NULL : PyObject_CallMethod(driver, "has", "s", name);
    int found = known != NULL && PyObject_IsTrue(known) == 1;
    note(known);
    return found;
}

static PyObject *set_driver(PyObject *module, PyObject *object) {
    Py_XSETREF(driver, Py_NewRef(object));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_driver", set_driver, METH_O, "Names the object that drives the machines of plug-ins."},
    {NULL, NULL, 0, NULL},
};

int fb_driven_init(PyObject *module) { return PyModule_AddFunctions(module, methods); }
