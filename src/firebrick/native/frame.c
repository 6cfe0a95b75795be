/* The frame evaluation hook (PEP 523) for CPython 3.11 to 3.13.
 *
 * Every Python function that is called while a thread has a callback passes `hook`. Code with nothing to
 * offer goes straight to the interpreter. Otherwise the entries of the code object are tried: an entry is a
 * guard plan and a function, and the first whose guards hold is called, as an ordinary function, with the
 * argument slots of the frame. Without such an entry the callback may make one.
 *
 * The frame itself never runs then. On 3.11 the caller disposes of it. Since 3.12 the evaluator does, so it
 * is given a frame whose next instruction is a lone RETURN_VALUE and whose stack holds the result. A frame
 * that ends with an exception is disposed of in the same way, with None, while the exception waits aside:
 * tracers and tracebacks then see nothing of a frame that never ran.
 */
#define _GNU_SOURCE
#define Py_BUILD_CORE_MODULE 1
#include "native.h"

#include <opcode.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "internal/pycore_frame.h"

/* ---- differences between versions ---------------------------------------- */

#if PY_VERSION_HEX >= 0x030D0000
#define FRAME_CODE(frame) ((PyCodeObject *)(frame)->f_executable)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#define FRAME_POINT_AT(frame, unit) ((frame)->instr_ptr = (unit))
#elif PY_VERSION_HEX >= 0x030C0000
#define FRAME_CODE(frame) ((frame)->f_code)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#define FRAME_POINT_AT(frame, unit) ((frame)->prev_instr = (unit) - 1) /* the instruction before the next */
#else
#define FRAME_CODE(frame) ((frame)->f_code)
#define FRAME_FUNCTION(frame) ((PyObject *)(frame)->f_func)
#endif

#if PY_VERSION_HEX >= 0x030C0000
#define CODE_GET_EXTRA PyUnstable_Code_GetExtra
#define CODE_SET_EXTRA PyUnstable_Code_SetExtra
#define CODE_REQUEST_EXTRA PyUnstable_Eval_RequestCodeExtraIndex
#else
#define CODE_GET_EXTRA _PyCode_GetExtra
#define CODE_SET_EXTRA _PyCode_SetExtra
#define CODE_REQUEST_EXTRA _PyEval_RequestCodeExtraIndex
#endif

/* The object of a weak reference, a new reference; NULL when it is gone. */
static PyObject *weak_target(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *target = NULL;
    if (PyWeakref_GetRef(reference, &target) < 0) PyErr_Clear();
    return target;
#else
    PyObject *target = PyWeakref_GET_OBJECT(reference);
    return target == Py_None ? NULL : Py_NewRef(target);
#endif
}

/* ---- entries --------------------------------------------------------------- */

typedef struct Site Site;

/* What was compiled for one code object under one set of guards; a skip mark of one scope has no plan. */
typedef struct Entry {
    PyObject_HEAD
    struct Entry *next; /* owned */
    Site *site;         /* NULL once removed */
    PyObject *plan, *code;
    PyObject *function; /* kept between calls without globals, builtins and closure, so that it keeps nothing of the user's alive */
    int lent;           /* a call is using `function` */
    PyObject *scope; /* compared, never used: the weak reference below tells when it dies */
    PyObject *scope_hold; /* weak reference to the scope, or the scope where it can't have one */
    Py_ssize_t hits;
} Entry;

/* What is known about a code object; it is the code's co_extra and dies with it. */
struct Site {
    Site *previous, *following; /* all sites */
    PyCodeObject *code;         /* borrowed: the code owns the site */
    Entry *first;
    uint32_t changes; /* counts changes to the list of entries */
    char pass;        /* never look further: generators, class bodies, compiled code */
    char skip;        /* never ask a callback again */
};

static Py_ssize_t extra_index;
static Site all_sites = {.previous = &all_sites, .following = &all_sites};
static PyTypeObject entry_type, frame_type, thread_type, mark_type, wrapped_type, installed_type;
static PyObject *skip_mark, *skip_scope_mark, *run_only_mark;

static void site_drop_entries(Site *site) {
    Entry *entry = site->first;
    site->first = NULL;
    site->changes++;
    while (entry != NULL) {
        Entry *next = entry->next;
        entry->next = NULL;
        entry->site = NULL;
        Py_DECREF(entry);
        entry = next;
    }
}

static void site_free(void *extra) {
    Site *site = extra;
    if (site == NULL) return;
    site->previous->following = site->following;
    site->following->previous = site->previous;
    site_drop_entries(site);
    PyMem_Free(site);
}

static Site *site_find(PyCodeObject *code) {
    void *extra = NULL;
    if (CODE_GET_EXTRA((PyObject *)code, extra_index, &extra) < 0) PyErr_Clear();
    return extra;
}

static Site *site_make(PyCodeObject *code) {
    Site *site = site_find(code);
    if (site != NULL) return site;
    site = PyMem_Calloc(1, sizeof *site);
    if (site == NULL) return (Site *)PyErr_NoMemory();
    site->code = code;
    const int body = CO_OPTIMIZED | CO_NEWLOCALS, suspended = CO_GENERATOR | CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR;
    site->pass = (code->co_flags & body) != body || (code->co_flags & suspended) != 0;
    if (CODE_SET_EXTRA((PyObject *)code, extra_index, site) < 0) {
        PyMem_Free(site);
        return NULL;
    }
    site->previous = all_sites.previous;
    site->following = &all_sites;
    site->previous->following = site->following->previous = site;
    return site;
}

static void entry_remove(Entry *entry) {
    Site *site = entry->site;
    if (site == NULL) return;
    for (Entry **link = &site->first; *link != NULL; link = &(*link)->next) {
        if (*link == entry) {
            *link = entry->next;
            entry->next = NULL;
            entry->site = NULL;
            site->changes++;
            Py_DECREF(entry);
            return;
        }
    }
}

static void entry_outlived(void *entry) { entry_remove(entry); }

static void entry_dealloc(Entry *entry) {
    if (entry->plan != NULL) fb_plan_set_owner(entry->plan, NULL, NULL);
    Py_XDECREF(entry->plan);
    Py_XDECREF(entry->code);
    Py_XDECREF(entry->function);
    Py_XDECREF(entry->scope_hold);
    PyObject_Free(entry);
}

static PyObject *entry_method_remove(PyObject *self, PyObject *none) {
    Py_INCREF(self);
    entry_remove((Entry *)self);
    Py_DECREF(self);
    Py_RETURN_NONE;
}

static PyObject *entry_get(PyObject *self, void *place) {
    PyObject *value = *(PyObject **)((char *)self + (Py_ssize_t)(intptr_t)place);
    return Py_NewRef(value == NULL ? Py_None : value);
}

static PyObject *entry_get_scope(PyObject *self, void *unused) {
    PyObject *hold = ((Entry *)self)->scope_hold;
    PyObject *scope = hold == NULL ? NULL : PyWeakref_CheckRef(hold) ? weak_target(hold) : Py_NewRef(hold);
    return scope == NULL ? Py_NewRef(Py_None) : scope;
}

static PyObject *entry_get_hits(PyObject *self, void *unused) { return PyLong_FromSsize_t(((Entry *)self)->hits); }

static PyObject *entry_get_original(PyObject *self, void *unused) {
    Site *site = ((Entry *)self)->site;
    return Py_NewRef(site == NULL ? Py_None : (PyObject *)site->code);
}

static PyGetSetDef entry_getset[] = {
    {"plan", entry_get, NULL, "The guard plan; None for a skip mark.", (void *)offsetof(Entry, plan)},
    {"code", entry_get, NULL, "The compiled code; None for a skip mark.", (void *)offsetof(Entry, code)},
    {"scope", entry_get_scope, NULL, "The scope that the entry belongs to.", NULL},
    {"hits", entry_get_hits, NULL, "How often the entry was used.", NULL},
    {"original", entry_get_original, NULL, "The user's code object; None once the entry was removed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef entry_methods[] = {
    {"remove", entry_method_remove, METH_NOARGS, "Take the entry off its code object; calls that are inside it finish."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject entry_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "What was compiled for one code object under one set of guards.",
    .tp_methods = entry_methods,
    .tp_getset = entry_getset,
};

/* ---- scopes ---------------------------------------------------------------- */

static int has_lost_scope(const Entry *entry, PyObject *address) {
    if (entry->scope != address || entry->scope_hold == NULL || !PyWeakref_CheckRef(entry->scope_hold)) return 0;
    PyObject *scope = weak_target(entry->scope_hold);
    Py_XDECREF(scope);
    return scope == NULL;
}

/* Entries hold their scope weakly: when it dies, so do they. The key is the address that the scope had. */
static PyObject *scope_died(PyObject *key, PyObject *reference) {
    PyObject *address = PyLong_AsVoidPtr(key);
    for (Site *site = all_sites.following; site != &all_sites;) {
        Entry *entry = site->first;
        while (entry != NULL && !has_lost_scope(entry, address)) entry = entry->next;
        if (entry == NULL) {
            site = site->following;
            continue;
        }
        entry_remove(entry);
        site = all_sites.following; /* freeing the entry may have freed any site */
    }
    Py_RETURN_NONE;
}

static PyMethodDef scope_died_method = {"scope_died", scope_died, METH_O, NULL};

static PyObject *scope_hold(PyObject *scope) {
    if (scope == Py_None) return NULL;
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(scope))) return Py_NewRef(scope);
    PyObject *key = PyLong_FromVoidPtr(scope);
    PyObject *callback = key == NULL ? NULL : PyCFunction_New(&scope_died_method, key);
    PyObject *hold = callback == NULL ? NULL : PyWeakref_NewRef(scope, callback);
    Py_XDECREF(key);
    Py_XDECREF(callback);
    return hold;
}

/* ---- threads ----------------------------------------------------------------- */

enum Mode { OFF, CAPTURE, RUN_ONLY };

/* Settings of one thread; owned by the dict of its PyThreadState. */
typedef struct {
    PyObject_HEAD
    PyObject *callback, *scope;
    enum Mode mode;
    int busy; /* a callback of this thread is running: nothing is offered, nothing compiled is used */
} Thread;

static _Thread_local Thread *current;
static PyObject *thread_key;
static Py_ssize_t active_threads;
static _PyFrameEvalFunction next_evaluator = _PyEval_EvalFrameDefault; /* what evaluated frames before the hook was put in */

static PyObject *hook(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag);

static void thread_set_mode(Thread *thread, enum Mode mode) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    active_threads += (mode != OFF) - (thread->mode != OFF);
    thread->mode = mode;
    _PyFrameEvalFunction evaluator = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (active_threads > 0 && evaluator != hook) {
        next_evaluator = evaluator;
        _PyInterpreterState_SetEvalFrameFunc(interpreter, hook);
    } else if (active_threads == 0 && evaluator == hook) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, next_evaluator);
    }
}

static void thread_dealloc(Thread *thread) {
    if (thread->mode != OFF) thread_set_mode(thread, OFF);
    if (current == thread) current = NULL;
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
    if (current != NULL) return current;
    PyObject *dict = PyThreadState_GetDict();
    if (dict == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "firebrick: the thread has no state");
        return NULL;
    }
    Thread *thread = PyObject_New(Thread, &thread_type);
    if (thread == NULL) return NULL;
    thread->callback = thread->scope = NULL;
    thread->mode = OFF;
    thread->busy = 0;
    int status = PyDict_SetItem(dict, thread_key, (PyObject *)thread);
    Py_DECREF(thread); /* the dict holds it */
    if (status < 0) return NULL;
    return current = thread;
}

/* Sets and returns what was set, as new references in `callback` and `scope`. */
static int thread_exchange(PyObject **callback, PyObject **scope) {
    Thread *thread = this_thread();
    if (thread == NULL) return -1;
    PyObject *old_callback = thread->callback, *old_scope = thread->scope;
    enum Mode mode = *callback == Py_None ? OFF : *callback == run_only_mark ? RUN_ONLY : CAPTURE;
    thread->callback = Py_NewRef(*callback);
    thread->scope = Py_NewRef(*scope);
    if (mode != thread->mode) thread_set_mode(thread, mode);
    *callback = old_callback == NULL ? Py_NewRef(Py_None) : old_callback;
    *scope = old_scope == NULL ? Py_NewRef(Py_None) : old_scope;
    return 0;
}

static int is_callback(PyObject *object) {
    if (object == Py_None || object == run_only_mark || PyCallable_Check(object)) return 1;
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
    Thread *thread = current;
    if (thread == NULL || thread->callback == NULL) return Py_BuildValue("(OO)", Py_None, Py_None);
    return Py_BuildValue("(OO)", thread->callback, thread->scope);
}

/* ---- Frame: what a callback sees --------------------------------------------- */

typedef struct {
    PyObject_VAR_HEAD
    PyCodeObject *code;
    PyObject *function, *globals, *builtins, *closure, *locals;
    FbFrame view;
    PyObject *values[1]; /* argument slots */
} Frame;

static Py_ssize_t argument_slots(const PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

static Frame *frame_make(PyFunctionObject *function, PyObject *const *values) {
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    Py_ssize_t count = argument_slots(code);
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
    return frame;
}

static PyObject *frame_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *function, *values;
    static char *names[] = {"function", "values", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!:Frame", names, &PyFunction_Type, &function, &PyTuple_Type, &values)) return NULL;
    Py_ssize_t count = argument_slots((PyCodeObject *)((PyFunctionObject *)function)->func_code);
    if (PyTuple_GET_SIZE(values) != count) {
        PyErr_Format(PyExc_ValueError, "the code has %zd argument slots, got %zd values", count, PyTuple_GET_SIZE(values));
        return NULL;
    }
    return (PyObject *)frame_make((PyFunctionObject *)function, &PyTuple_GET_ITEM(values, 0));
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

static PyObject *frame_get(PyObject *self, void *place) {
    PyObject *value = *(PyObject **)((char *)self + (Py_ssize_t)(intptr_t)place);
    return Py_NewRef(value == NULL ? Py_None : value);
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

static PyGetSetDef frame_getset[] = {
    {"code", frame_get, NULL, "The code object.", (void *)offsetof(Frame, code)},
    {"function", frame_get, NULL, "The function that was called.", (void *)offsetof(Frame, function)},
    {"globals", frame_get, NULL, "The globals of the frame.", (void *)offsetof(Frame, globals)},
    {"builtins", frame_get, NULL, "The builtins of the frame.", (void *)offsetof(Frame, builtins)},
    {"closure", frame_get, NULL, "Tuple of cells in the order of co_freevars, or None.", (void *)offsetof(Frame, closure)},
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
    .tp_getset = frame_getset,
};

const FbFrame *fb_frame_of(PyObject *view) {
    if (Py_IS_TYPE(view, &frame_type)) return &((Frame *)view)->view;
    PyErr_Format(PyExc_TypeError, "expected a Frame, got %.200s", Py_TYPE(view)->tp_name);
    return NULL;
}

/* ---- the hook ------------------------------------------------------------------ */

#if PY_VERSION_HEX >= 0x030C0000
static _Py_CODEUNIT lone_return[3]; /* NOP, RETURN_VALUE, NOP */

/* Lets the evaluator dispose of a frame that never ran. Takes `result`, NULL with an exception set. */
static PyObject *frame_finish(PyThreadState *tstate, _PyInterpreterFrame *frame, PyObject *result) {
    PyObject *raised = result == NULL ? PyErr_GetRaisedException() : NULL;
    frame->localsplus[frame->stacktop++] = result == NULL ? Py_NewRef(Py_None) : result;
    FRAME_POINT_AT(frame, lone_return + 1);
    PyObject *value = _PyEval_EvalFrameDefault(tstate, frame, 0);
    if (raised == NULL) return value;
    Py_XDECREF(value);
    PyErr_SetRaisedException(raised); /* replaces a RecursionError of the evaluator's own */
    return NULL;
}
#else
#define frame_finish(tstate, frame, result) (result)
#endif

/* With a hook every Python call nests in the C stack, which the interpreter counts against a limit that is lower than
 * that of Python calls (1500 units on 3.12, of which a call takes two). The hook gives the units back, so that user's
 * programs may recurse as deep as without it, and watches the real stack instead: a quarter of it is kept in reserve.
 */
static _Thread_local uintptr_t stack_reserve = UINTPTR_MAX; /* lowest address to go to; not yet known */

static void find_stack(void) {
    pthread_attr_t attributes;
    void *base = NULL;
    size_t size = 0;
    stack_reserve = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
    if (pthread_attr_getstack(&attributes, &base, &size) == 0) stack_reserve = (uintptr_t)base + size / 4;
    pthread_attr_destroy(&attributes);
}

static inline int stack_is_short(void) {
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    if (here >= stack_reserve) return 0;
    if (stack_reserve == UINTPTR_MAX) find_stack();
    return here < stack_reserve;
}

#if PY_VERSION_HEX >= 0x030C0000
enum { UNITS_OF_A_CALL = 2 };
#define TAKE_UNITS(tstate) ((tstate)->c_recursion_remaining += UNITS_OF_A_CALL)
#define RETURN_UNITS(tstate) ((tstate)->c_recursion_remaining -= UNITS_OF_A_CALL)
#else
#define TAKE_UNITS(tstate) ((void)0)
#define RETURN_UNITS(tstate) ((void)0)
#endif

static PyObject *evaluate_plainly(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag) {
    TAKE_UNITS(tstate);
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    RETURN_UNITS(tstate);
    return result;
}

/* The frame that was handed to another tool's evaluator: if it comes back, that tool had been put in over the hook. */
static _Thread_local const _PyInterpreterFrame *forwarded;

static PyObject *evaluate_foreign(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag) {
    const _PyInterpreterFrame *outer = forwarded;
    if (outer == frame) return evaluate_plainly(tstate, frame, throwflag);
    forwarded = frame;
    PyObject *result = next_evaluator(tstate, frame, throwflag);
    forwarded = outer;
    return result;
}

static inline PyObject *evaluate(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag) {
    if (next_evaluator == _PyEval_EvalFrameDefault) return evaluate_plainly(tstate, frame, throwflag);
    return evaluate_foreign(tstate, frame, throwflag);
}

/* A function for the compiled code with this frame's globals and closure; a new reference. */
static PyFunctionObject *entry_borrow_function(Entry *entry, const _PyInterpreterFrame *frame, const PyFunctionObject *original) {
    PyFunctionObject *function = (PyFunctionObject *)entry->function;
    if (function != NULL && !entry->lent) {
        Py_INCREF(function);
        function->func_globals = Py_NewRef(frame->f_globals);
    } else {
        function = (PyFunctionObject *)PyFunction_New(entry->code, frame->f_globals);
        if (function == NULL) return NULL;
        Py_CLEAR(function->func_builtins);
        if (entry->function == NULL) entry->function = Py_NewRef(function);
    }
    function->func_builtins = Py_NewRef(frame->f_builtins);
    function->func_closure = Py_XNewRef(original->func_closure);
    if (entry->function == (PyObject *)function) entry->lent = 1;
    return function;
}

static void entry_return_function(Entry *entry, PyFunctionObject *function) {
    if (entry->function == (PyObject *)function) {
        entry->lent = 0;
        if (Py_REFCNT(function) == 2) {
            Py_CLEAR(function->func_globals);
            Py_CLEAR(function->func_builtins);
            Py_CLEAR(function->func_closure);
        } else { /* a frame that outlives its call refers to it */
            Py_CLEAR(entry->function);
        }
    }
    Py_DECREF(function);
}

/* The entry of the thread's scope whose guards hold, moved to the front; a new reference. `skip` is set by a skip mark. */
static Entry *site_match(Site *site, const Thread *thread, const FbFrame *view, int *skip) {
    PyObject *scope = thread->scope;
    int any_scope = thread->mode == RUN_ONLY && scope == Py_None;
    for (int attempt = 0; attempt < 4; attempt++) {
        uint32_t changes = site->changes;
        Entry **link = &site->first;
        int disturbed = 0;
        for (Entry *entry = *link; entry != NULL; link = &entry->next, entry = *link) {
            if (entry->scope != scope && !any_scope) continue;
            if (entry->plan == NULL) {
                *skip = 1;
                continue;
            }
            Py_INCREF(entry);
            int holds = fb_plan_check(entry->plan, view);
            disturbed = site->changes != changes;
            if (holds && entry->site != NULL) {
                if (!disturbed && link != &site->first) { /* last hit first */
                    *link = entry->next;
                    entry->next = site->first;
                    site->first = entry;
                    site->changes++;
                }
                return entry;
            }
            Py_DECREF(entry);
            if (disturbed) break;
        }
        if (!disturbed) break;
    }
    return NULL;
}

/* The code with every argument slot positional: the hook hands over *args and **kwargs as the objects they are. */
static PyObject *with_plain_slots(PyCodeObject *code) {
    int flags = code->co_flags & ~(CO_VARARGS | CO_VARKEYWORDS);
    if (flags == code->co_flags && code->co_kwonlyargcount == 0) return Py_NewRef(code);
    PyObject *replace = PyObject_GetAttrString((PyObject *)code, "replace"), *none = PyTuple_New(0);
    PyObject *changes = Py_BuildValue("{s:n,s:i,s:i,s:i}", "co_argcount", argument_slots(code), "co_kwonlyargcount", 0, "co_posonlyargcount", 0,
                                      "co_flags", flags);
    PyObject *plain = replace == NULL || none == NULL || changes == NULL ? NULL : PyObject_Call(replace, none, changes);
    Py_XDECREF(replace);
    Py_XDECREF(none);
    Py_XDECREF(changes);
    return plain;
}

static Entry *site_add(Site *site, PyObject *scope, PyObject *plan, PyCodeObject *code) {
    PyObject *plain = NULL;
    if (code != NULL) {
        if (argument_slots(code) != argument_slots(site->code) || code->co_nfreevars != site->code->co_nfreevars) {
            PyErr_Format(PyExc_ValueError, "code compiled for %U has %zd argument slots and %d free variables, it needs %zd and %d",
                         site->code->co_qualname, argument_slots(code), code->co_nfreevars, argument_slots(site->code),
                         site->code->co_nfreevars);
            return NULL;
        }
        if ((plain = with_plain_slots(code)) == NULL) return NULL;
        Site *compiled = site_make((PyCodeObject *)plain);
        if (compiled == NULL || compiled == site) {
            Py_DECREF(plain);
            if (compiled != NULL) PyErr_SetString(PyExc_ValueError, "the compiled code is the user's own code");
            return NULL;
        }
        compiled->pass = 1;
    }
    PyObject *hold = scope_hold(scope);
    Entry *entry = PyErr_Occurred() ? NULL : PyObject_New(Entry, &entry_type);
    if (entry == NULL) {
        Py_XDECREF(hold);
        Py_XDECREF(plain);
        return NULL;
    }
    entry->site = site;
    entry->plan = Py_XNewRef(plan);
    entry->code = plain;
    entry->function = NULL;
    entry->lent = 0;
    entry->scope = scope;
    entry->scope_hold = hold;
    entry->hits = 0;
    entry->next = site->first;
    site->first = entry; /* the list takes the reference */
    site->changes++;
    if (plan != NULL) fb_plan_set_owner(plan, entry, entry_outlived);
    return entry;
}

/* Puts a callback's answer into effect; 0, or -1 with an exception. */
static int site_answer(Site *site, PyObject *scope, PyObject *answer) {
    if (answer == Py_None) return 0;
    if (answer == skip_mark) {
        site->skip = 1;
        return 0;
    }
    if (answer == skip_scope_mark) return site_add(site, scope, NULL, NULL) == NULL ? -1 : 0;
    if (PyTuple_Check(answer) && PyTuple_GET_SIZE(answer) == 2) {
        PyObject *plan = PyTuple_GET_ITEM(answer, 0), *code = PyTuple_GET_ITEM(answer, 1);
        if (PyObject_TypeCheck(plan, &fb_plan_type) && PyCode_Check(code)) {
            return site_add(site, scope, plan, (PyCodeObject *)code) == NULL ? -1 : 0;
        }
    }
    PyErr_SetString(PyExc_TypeError, "a frame callback returns None, SKIP, SKIP_SCOPE or (GuardPlan, code)");
    return -1;
}

static PyObject *call_entry(PyThreadState *tstate, _PyInterpreterFrame *frame, Entry *entry, PyFunctionObject *original) {
    PyFunctionObject *function = entry_borrow_function(entry, frame, original);
    PyObject *result = NULL;
    entry->hits++;
    if (function != NULL) {
        result = PyObject_Vectorcall((PyObject *)function, frame->localsplus, (size_t)((PyCodeObject *)entry->code)->co_argcount, NULL);
        entry_return_function(entry, function);
    }
    Py_DECREF(entry);
    return frame_finish(tstate, frame, result);
}

/* Asks the thread's callback about a frame; 1 when it answered, -1 with its exception. */
static int ask(Thread *thread, Site *site, PyFunctionObject *original, _PyInterpreterFrame *frame) {
    PyObject *view = (PyObject *)frame_make(original, frame->localsplus);
    if (view == NULL) return -1;
    PyObject *callback = Py_NewRef(thread->callback), *scope = Py_NewRef(thread->scope);
    Py_INCREF(thread);
    thread->busy++;
    PyObject *answer = PyObject_CallOneArg(callback, view);
    thread->busy--;
    int status = answer == NULL ? -1 : site_answer(site, scope, answer);
    Py_DECREF(thread);
    Py_DECREF(view);
    Py_DECREF(callback);
    Py_DECREF(scope);
    Py_XDECREF(answer);
    return status < 0 ? -1 : 1;
}

static PyObject *hook_slow(PyThreadState *tstate, _PyInterpreterFrame *frame, Thread *thread, Site *site) {
    PyFunctionObject *original = (PyFunctionObject *)FRAME_FUNCTION(frame);
    if (!PyFunction_Check(original) || (PyCodeObject *)original->func_code != FRAME_CODE(frame)) return evaluate(tstate, frame, 0);
    FbFrame view = {frame->localsplus, frame->f_globals, frame->f_builtins, original->func_closure};
    for (int asked = 0;; asked = 1) {
        int skip = site->skip;
        Entry *entry = site_match(site, thread, &view, &skip);
        if (entry != NULL) return call_entry(tstate, frame, entry, original);
        if (asked || skip || thread->mode != CAPTURE) return evaluate(tstate, frame, 0);
        if (ask(thread, site, original, frame) < 0) return frame_finish(tstate, frame, NULL);
    }
}

/* Ends a frame that can't be begun for want of stack. A generator's frame must begin to be ended. */
static PyObject *refuse(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag) {
    if (throwflag || frame->owner != FRAME_OWNED_BY_THREAD) return evaluate_plainly(tstate, frame, throwflag);
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded: the C stack is nearly full");
    return frame_finish(tstate, frame, NULL);
}

static PyObject *hook(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag) {
    Thread *thread = current;
    if (stack_is_short()) return refuse(tstate, frame, throwflag);
    if (thread == NULL || thread->mode == OFF || thread->busy || throwflag || forwarded == frame) return evaluate(tstate, frame, throwflag);
    Site *site = site_find(FRAME_CODE(frame));
    if (site == NULL) {
        if (thread->mode == RUN_ONLY) return evaluate(tstate, frame, 0);
        site = site_make(FRAME_CODE(frame));
        if (site == NULL) {
            PyErr_Clear();
            return evaluate(tstate, frame, 0);
        }
    }
    if (site->pass || (site->first == NULL && (site->skip || thread->mode == RUN_ONLY))) return evaluate(tstate, frame, 0);
    return hook_slow(tstate, frame, thread, site);
}

/* ---- Wrapped: a callable that has the hook on while it runs ------------------------ */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function, *callback, *scope;
} Wrapped;

static PyObject *wrapped_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    Wrapped *wrapped = (Wrapped *)self;
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
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:Wrapped", names, &function, &callback, &scope) || !is_callback(callback)) return NULL;
    Wrapped *wrapped = PyObject_GC_New(Wrapped, type);
    if (wrapped == NULL) return NULL;
    wrapped->vectorcall = wrapped_call;
    wrapped->function = Py_NewRef(function);
    wrapped->callback = Py_NewRef(callback);
    wrapped->scope = Py_NewRef(scope);
    PyObject_GC_Track(wrapped);
    return (PyObject *)wrapped;
}

static int wrapped_traverse(Wrapped *wrapped, visitproc visit, void *arg) {
    Py_VISIT(wrapped->function);
    Py_VISIT(wrapped->callback);
    Py_VISIT(wrapped->scope);
    return 0;
}

static int wrapped_clear(Wrapped *wrapped) {
    Py_CLEAR(wrapped->function);
    Py_CLEAR(wrapped->callback);
    Py_CLEAR(wrapped->scope);
    return 0;
}

static void wrapped_dealloc(Wrapped *wrapped) {
    PyObject_GC_UnTrack(wrapped);
    wrapped_clear(wrapped);
    PyObject_GC_Del(wrapped);
}

static PyTypeObject wrapped_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.Wrapped",
    .tp_basicsize = sizeof(Wrapped),
    .tp_new = wrapped_new,
    .tp_dealloc = (destructor)wrapped_dealloc,
    .tp_traverse = (traverseproc)wrapped_traverse,
    .tp_clear = (inquiry)wrapped_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Wrapped, vectorcall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Wrapped(function, callback, scope=None): calls the function with the callback set on the calling thread.",
};

/* ---- Installed: a context manager, native so that entering and leaving offers no frames ---- */

typedef struct {
    PyObject_HEAD
    PyObject *callback, *scope; /* to be set, then what was set before */
    int entered;
} Installed;

static PyObject *installed_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *callback, *scope = Py_None;
    static char *names[] = {"callback", "scope", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:installed", names, &callback, &scope)) return NULL;
    if (!is_callback(callback)) return NULL;
    Installed *installed = PyObject_GC_New(Installed, type);
    if (installed == NULL) return NULL;
    installed->callback = Py_NewRef(callback);
    installed->scope = Py_NewRef(scope);
    installed->entered = 0;
    PyObject_GC_Track(installed);
    return (PyObject *)installed;
}

static int installed_exchange(Installed *installed, int entered) {
    if (installed->entered == entered) {
        PyErr_SetString(PyExc_RuntimeError, entered ? "the context is entered already" : "the context was not entered");
        return -1;
    }
    PyObject *callback = installed->callback, *scope = installed->scope;
    if (thread_exchange(&callback, &scope) < 0) return -1;
    installed->entered = entered;
    Py_SETREF(installed->callback, callback);
    Py_SETREF(installed->scope, scope);
    return 0;
}

static PyObject *installed_enter(PyObject *self, PyObject *none) {
    if (installed_exchange((Installed *)self, 1) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *installed_exit(PyObject *self, PyObject *raised) {
    if (installed_exchange((Installed *)self, 0) < 0) return NULL;
    Py_RETURN_FALSE;
}

static int installed_traverse(Installed *installed, visitproc visit, void *arg) {
    Py_VISIT(installed->callback);
    Py_VISIT(installed->scope);
    return 0;
}

static int installed_clear(Installed *installed) {
    Py_CLEAR(installed->callback);
    Py_CLEAR(installed->scope);
    return 0;
}

static void installed_dealloc(Installed *installed) {
    PyObject_GC_UnTrack(installed);
    installed_clear(installed);
    PyObject_GC_Del(installed);
}

static PyMethodDef installed_methods[] = {
    {"__enter__", installed_enter, METH_NOARGS, NULL},
    {"__exit__", installed_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject installed_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.installed",
    .tp_basicsize = sizeof(Installed),
    .tp_new = installed_new,
    .tp_dealloc = (destructor)installed_dealloc,
    .tp_traverse = (traverseproc)installed_traverse,
    .tp_clear = (inquiry)installed_clear,
    .tp_methods = installed_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "installed(callback, scope=None): a context in which the callback is asked about frames of this thread.",
};

/* ---- functions of the module ------------------------------------------------------- */

static int append_entries(PyObject *list, const Site *site) {
    for (Entry *entry = site->first; entry != NULL; entry = entry->next) {
        if (PyList_Append(list, (PyObject *)entry) < 0) return -1;
    }
    return 0;
}

static PyObject *entries(PyObject *self, PyObject *args) {
    PyObject *code = NULL;
    if (!PyArg_ParseTuple(args, "|O!:entries", &PyCode_Type, &code)) return NULL;
    PyObject *list = PyList_New(0);
    if (list == NULL) return NULL;
    int status = 0;
    if (code != NULL) {
        Site *site = site_find((PyCodeObject *)code);
        if (site != NULL) status = append_entries(list, site);
    } else {
        for (Site *site = all_sites.following; site != &all_sites && status == 0; site = site->following) status = append_entries(list, site);
    }
    if (status < 0) Py_CLEAR(list);
    return list;
}

static PyObject *add_entry(PyObject *self, PyObject *args) {
    PyObject *code, *plan, *compiled, *scope = Py_None;
    if (!PyArg_ParseTuple(args, "O!O!O!|O:add_entry", &PyCode_Type, &code, &fb_plan_type, &plan, &PyCode_Type, &compiled, &scope)) return NULL;
    Site *site = site_make((PyCodeObject *)code);
    Entry *entry = site == NULL ? NULL : site_add(site, scope, plan, (PyCodeObject *)compiled);
    return Py_XNewRef((PyObject *)entry);
}

static PyObject *skip_code(PyObject *self, PyObject *code) {
    if (!PyCode_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "skip_code needs a code object");
        return NULL;
    }
    Site *site = site_make((PyCodeObject *)code);
    if (site == NULL) return NULL;
    site->skip = 1;
    Py_RETURN_NONE;
}

static PyObject *reset(PyObject *self, PyObject *none) {
    for (Site *site = all_sites.following; site != &all_sites; site = site->following) site->skip = 0;
    for (Site *site = all_sites.following; site != &all_sites;) {
        if (site->first == NULL) {
            site = site->following;
            continue;
        }
        site_drop_entries(site);
        site = all_sites.following; /* what was freed may have freed any site */
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_callback", set_callback, METH_VARARGS,
     "set_callback(callback, scope=None): ask callback about frames of this thread; RUN_ONLY or None instead. Returns what was set."},
    {"get_callback", get_callback, METH_NOARGS, "The (callback, scope) of this thread."},
    {"entries", entries, METH_VARARGS, "entries(code=None): the entries of a code object, or all."},
    {"add_entry", add_entry, METH_VARARGS, "add_entry(code, plan, compiled, scope=None): add an entry without a callback."},
    {"skip_code", skip_code, METH_O, "Never offer this code to a callback."},
    {"reset", reset, METH_NOARGS, "Remove all entries and skip marks."},
    {NULL, NULL, 0, NULL},
};

typedef struct {
    PyObject_HEAD
    const char *name;
} Mark;

static PyObject *mark_repr(PyObject *self) { return PyUnicode_FromString(((Mark *)self)->name); }

static PyTypeObject mark_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.Mark",
    .tp_basicsize = sizeof(Mark),
    .tp_repr = mark_repr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A constant of the hook's protocol.",
};

static PyObject *add_mark(PyObject *module, const char *name) {
    Mark *mark = PyObject_New(Mark, &mark_type);
    if (mark == NULL) return NULL;
    mark->name = name;
    return PyModule_AddObjectRef(module, name, (PyObject *)mark) < 0 ? NULL : (PyObject *)mark;
}

int fb_frame_init(PyObject *module) {
#if PY_VERSION_HEX >= 0x030C0000
    for (int i = 0; i < 3; i++) lone_return[i].op.code = i == 1 ? RETURN_VALUE : NOP;
#endif
    PyTypeObject *types[] = {&entry_type, &frame_type, &thread_type, &mark_type, &wrapped_type, &installed_type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyType_Ready(types[i]) < 0) return -1;
    }
    extra_index = CODE_REQUEST_EXTRA(site_free);
    thread_key = PyUnicode_InternFromString("firebrick.hook");
    if (extra_index < 0 || thread_key == NULL) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ImportError, "firebrick: no place is left for data of code objects");
        return -1;
    }
    skip_mark = add_mark(module, "SKIP");
    skip_scope_mark = add_mark(module, "SKIP_SCOPE");
    run_only_mark = add_mark(module, "RUN_ONLY");
    if (skip_mark == NULL || skip_scope_mark == NULL || run_only_mark == NULL) return -1;
    if (PyModule_AddObjectRef(module, "Entry", (PyObject *)&entry_type) < 0 || PyModule_AddObjectRef(module, "Frame", (PyObject *)&frame_type) < 0 ||
        PyModule_AddObjectRef(module, "Wrapped", (PyObject *)&wrapped_type) < 0 ||
        PyModule_AddObjectRef(module, "installed", (PyObject *)&installed_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
