/* Callbacks: settings of threads, and the ways to have one set for a while. */
#include "hook.h"

#include <stddef.h>
#include <structmember.h>

/* ---- threads ----------------------------------------------------------------- */

_Thread_local Thread *fb_thread;
static PyTypeObject thread_type;
static PyObject *thread_key;
static Py_ssize_t active_threads;

static void thread_set_mode(Thread *thread, enum Mode mode) {
    active_threads += (mode != OFF) - (thread->mode != OFF);
    thread->mode = mode;
    fb_hook_install(active_threads > 0);
}

static void thread_dealloc(Thread *thread) {
    if (thread->mode != OFF) thread_set_mode(thread, OFF);
    if (fb_thread == thread) fb_thread = NULL;
    Py_XDECREF(thread->callback);
    Py_XDECREF(thread->scope);
    PyObject_Free(thread);
}

static PyTypeObject thread_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.Thread",
    .tp_basicsize = sizeof(Thread),
    .tp_dealloc = (destructor)thread_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Settings of the hook for one thread.",
};

static Thread *this_thread(void) {
    if (fb_thread != NULL) return fb_thread;
    PyObject *dict = PyThreadState_GetDict();
    if (dict == NULL) return (void *)PyErr_Format(PyExc_RuntimeError, "firebrick: the thread has no state");
    Thread *thread = PyObject_New(Thread, &thread_type);
    if (thread == NULL) return NULL;
    thread->callback = thread->scope = NULL;
    thread->mode = OFF;
    thread->busy = 0;
    int status = PyDict_SetItem(dict, thread_key, (PyObject *)thread);
    Py_DECREF(thread); /* the dict holds it */
    if (status < 0) return NULL;
    return fb_thread = thread;
}

/* Sets and returns what was set, as new references in `callback` and `scope`. */
static int thread_exchange(PyObject **callback, PyObject **scope) {
    Thread *thread = this_thread();
    if (thread == NULL) return -1;
    PyObject *old_callback = thread->callback, *old_scope = thread->scope;
    enum Mode mode = *callback == Py_None ? OFF : *callback == fb_run_only ? RUN_ONLY : CAPTURE;
    thread->callback = Py_NewRef(*callback);
    thread->scope = Py_NewRef(*scope);
    if (mode != thread->mode) thread_set_mode(thread, mode);
    *callback = old_callback == NULL ? Py_NewRef(Py_None) : old_callback;
    *scope = old_scope == NULL ? Py_NewRef(Py_None) : old_scope;
    return 0;
}

static int is_callback(PyObject *object) {
    if (object == Py_None || object == fb_run_only || PyCallable_Check(object)) return 1;
    PyErr_SetString(PyExc_TypeError, "a frame callback must be callable, RUN_ONLY or None");
    return 0;
}

static PyObject *set_callback(PyObject *self, PyObject *args) {
    PyObject *callback, *scope = Py_None;
    if (!PyArg_ParseTuple(args, "O|O:set_callback", &callback, &scope) || !is_callback(callback)) return NULL;
    if (thread_exchange(&callback, &scope) < 0) return NULL;
    return Py_BuildValue("(NN)", callback, scope);
}

static PyObject *get_callback(PyObject *self, PyObject *none) {
    Thread *thread = fb_thread;
    if (thread == NULL || thread->callback == NULL) return Py_BuildValue("(OO)", Py_None, Py_None);
    return Py_BuildValue("(OO)", thread->callback, thread->scope);
}
/* ---- settings, as objects ------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* NULL of a context */
    PyObject *callback, *scope; /* to be set; while a context is entered, what was set before */
    int entered;
} Setting;

static PyObject *setting_make(PyTypeObject *type, vectorcallfunc call, PyObject *function, PyObject *callback, PyObject *scope) {
    Setting *setting = is_callback(callback) ? PyObject_GC_New(Setting, type) : NULL;
    if (setting == NULL) return NULL;
    setting->vectorcall = call;
    setting->function = Py_XNewRef(function);
    setting->callback = Py_NewRef(callback);
    setting->scope = Py_NewRef(scope);
    setting->entered = 0;
    PyObject_GC_Track(setting);
    return (PyObject *)setting;
}

static int setting_traverse(Setting *setting, visitproc visit, void *arg) {
    Py_VISIT(setting->function);
    Py_VISIT(setting->callback);
    Py_VISIT(setting->scope);
    return 0;
}

static int setting_clear(Setting *setting) {
    Py_CLEAR(setting->function);
    Py_CLEAR(setting->callback);
    Py_CLEAR(setting->scope);
    return 0;
}

static void setting_dealloc(Setting *setting) {
    PyObject_GC_UnTrack(setting);
    setting_clear(setting);
    PyObject_GC_Del(setting);
}

/* ---- Wrapped: a callable that has the hook on while it runs ------------------------ */

static PyObject *wrapped_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    Setting *wrapped = (Setting *)self;
    PyObject *callback = wrapped->callback, *scope = wrapped->scope;
    if (thread_exchange(&callback, &scope) < 0) return NULL;
    PyObject *result = PyObject_Vectorcall(wrapped->function, args, nargsf, names);
    PyObject *raised_type = NULL, *raised = NULL, *traceback = NULL;
    if (result == NULL) PyErr_Fetch(&raised_type, &raised, &traceback);
    PyObject *mine = callback, *my_scope = scope;
    thread_exchange(&callback, &scope);
    Py_DECREF(mine);
    Py_DECREF(my_scope);
    Py_DECREF(callback);
    Py_DECREF(scope);
    if (result == NULL) PyErr_Restore(raised_type, raised, traceback);
    return result;
}

static PyObject *wrapped_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *function, *callback, *scope = Py_None;
    static char *names[] = {"function", "callback", "scope", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:Wrapped", names, &function, &callback, &scope)) return NULL;
    return setting_make(type, wrapped_call, function, callback, scope);
}

static PyMemberDef wrapped_members[] = {
    {"function", T_OBJECT_EX, offsetof(Setting, function), READONLY, NULL},
    {NULL},
};

static PyTypeObject wrapped_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.Wrapped",
    .tp_basicsize = sizeof(Setting),
    .tp_new = wrapped_new,
    .tp_dealloc = (destructor)setting_dealloc,
    .tp_traverse = (traverseproc)setting_traverse,
    .tp_clear = (inquiry)setting_clear,
    .tp_call = PyVectorcall_Call,
    .tp_members = wrapped_members,
    .tp_vectorcall_offset = offsetof(Setting, vectorcall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Wrapped(function, callback, scope=None): calls the function with the callback set on the calling thread.",
};

/* ---- Installed: a context manager, native so that entering and leaving offers no frames ---- */

static PyObject *installed_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *callback, *scope = Py_None;
    static char *names[] = {"callback", "scope", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:installed", names, &callback, &scope)) return NULL;
    return setting_make(type, NULL, NULL, callback, scope);
}

static int installed_exchange(Setting *installed, int entered) {
    if (installed->entered == entered)
        return FB_RAISE(PyExc_RuntimeError, entered ? "the context is entered already" : "the context was not entered");
    PyObject *callback = installed->callback, *scope = installed->scope;
    if (thread_exchange(&callback, &scope) < 0) return -1;
    installed->entered = entered;
    Py_SETREF(installed->callback, callback);
    Py_SETREF(installed->scope, scope);
    return 0;
}

static PyObject *installed_enter(PyObject *self, PyObject *none) {
    if (installed_exchange((Setting *)self, 1) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *installed_exit(PyObject *self, PyObject *raised) {
    if (installed_exchange((Setting *)self, 0) < 0) return NULL;
    Py_RETURN_FALSE;
}

static PyMethodDef installed_methods[] = {
    {"__enter__", installed_enter, METH_NOARGS, NULL},
    {"__exit__", installed_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject installed_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.installed",
    .tp_basicsize = sizeof(Setting),
    .tp_new = installed_new,
    .tp_dealloc = (destructor)setting_dealloc,
    .tp_traverse = (traverseproc)setting_traverse,
    .tp_clear = (inquiry)setting_clear,
    .tp_methods = installed_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "installed(callback, scope=None): a context in which the callback is asked about frames of this thread.",
};
/* ---- functions of the module ------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"set_callback", set_callback, METH_VARARGS,
     "set_callback(callback, scope=None): ask callback about frames of this thread; RUN_ONLY or None instead. Returns what was set."},
    {"get_callback", get_callback, METH_NOARGS, "The (callback, scope) of this thread."},
    {NULL, NULL, 0, NULL},
};

int fb_callback_init(PyObject *module) {
    if (PyType_Ready(&thread_type) < 0 || PyModule_AddType(module, &wrapped_type) < 0 || PyModule_AddType(module, &installed_type) < 0) return -1;
    thread_key = PyUnicode_InternFromString("firebrick.hook");
    return thread_key == NULL ? -1 : PyModule_AddFunctions(module, methods);
}
