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
#include "hook.h"

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

static PyObject *hook(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag);
static _PyFrameEvalFunction next_evaluator = _PyEval_EvalFrameDefault; /* what evaluated frames before the hook was put in */

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

/* ---- arguments that belong to the callee ---------------------------------------------- */

/* Whoever calls a function holds its arguments until it returns. Where a frame goes on in another function nothing but
 * that function is to hold them, so that an object dies where it would have: the references are given up as soon as
 * the function's frame, which holds its own, comes by. */
static _Thread_local struct Handover {
    PyObject *function; /* borrowed; NULL once it has begun */
    PyObject **arguments;
    Py_ssize_t count;
} handover;

static void give_up(PyObject **arguments, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) Py_CLEAR(arguments[i]);
}

static PyObject *hand_over(PyObject *function, PyObject **arguments, Py_ssize_t count) {
    struct Handover outer = handover;
    handover = (struct Handover){function, arguments, count};
    PyObject *result = PyObject_Vectorcall(function, arguments, (size_t)count, NULL);
    handover = outer;
    return result;
}

/* Every frame passes here before it runs. */
static inline void take_over(const _PyInterpreterFrame *frame) {
    if (handover.function == NULL || (PyObject *)FRAME_FUNCTION(frame) != handover.function) return;
    handover.function = NULL;
    give_up(handover.arguments, handover.count);
}

static PyObject *go_on(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count) {
    if (count != 2 || !PyList_CheckExact(given[1])) return PyErr_Format(PyExc_TypeError, "go_on() takes a function and a list");
    Py_ssize_t size = PyList_GET_SIZE(given[1]);
    PyObject *few[16], **arguments = size <= 16 ? few : PyMem_New(PyObject *, size);
    if (arguments == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < size; i++) arguments[i] = Py_NewRef(PyList_GET_ITEM(given[1], i));
    PyObject *result = NULL;
    if (PyList_SetSlice(given[1], 0, size, NULL) == 0) result = hand_over(given[0], arguments, size);
    give_up(arguments, size);
    if (arguments != few) PyMem_Free(arguments);
    return result;
}

static PyObject *call_entry(PyThreadState *tstate, _PyInterpreterFrame *frame, Entry *entry, PyFunctionObject *original) {
    PyFunctionObject *function = entry_borrow_function(entry, frame, original);
    PyObject *result = NULL;
    entry->hits++;
    if (function != NULL) {
        result = hand_over((PyObject *)function, frame->localsplus, ((PyCodeObject *)entry->code)->co_argcount);
        entry_return_function(entry, function);
    }
    Py_DECREF(entry);
    return frame_finish(tstate, frame, result);
}

/* Asks the thread's callback about a frame; 1 when it answered, -1 with its exception. */
static int ask(Thread *thread, Site *site, PyFunctionObject *original, _PyInterpreterFrame *frame) {
    PyObject *view = fb_view_make(original, frame->localsplus);
    if (view == NULL) return -1;
    PyObject *callback = Py_NewRef(thread->callback), *scope = Py_NewRef(thread->scope);
    Py_INCREF(thread);
    thread->busy++;
    PyObject *answer = PyObject_CallOneArg(callback, view);
    thread->busy--;
    int status = answer == NULL ? -1 : fb_site_answer(site, scope, answer);
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
        int any_scope = thread->mode == RUN_ONLY && thread->scope == Py_None;
        Py_INCREF(thread);
        thread->busy++; /* the user's code that guards run is not captured */
        Entry *entry = fb_site_match(site, thread->scope, any_scope, &view, &skip);
        thread->busy--;
        Py_DECREF(thread);
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
    Thread *thread = fb_thread;
    take_over(frame);
    if (stack_is_short()) return refuse(tstate, frame, throwflag);
    if (thread == NULL || thread->mode == OFF || thread->busy || throwflag || forwarded == frame) return evaluate(tstate, frame, throwflag);
    Site *site = fb_site_find(FRAME_CODE(frame));
    if (site == NULL) {
        if (thread->mode == RUN_ONLY) return evaluate(tstate, frame, 0);
        site = fb_site_make(FRAME_CODE(frame));
        if (site == NULL) {
            PyErr_Clear();
            return evaluate(tstate, frame, 0);
        }
    }
    if (site->pass || (site->first == NULL && (site->skip || thread->mode == RUN_ONLY))) return evaluate(tstate, frame, 0);
    return hook_slow(tstate, frame, thread, site);
}

void fb_hook_install(int wanted) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction evaluator = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (wanted && evaluator != hook) {
        next_evaluator = evaluator;
        _PyInterpreterState_SetEvalFrameFunc(interpreter, hook);
    } else if (!wanted && evaluator == hook) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, next_evaluator);
    }
}

/* ---- the module ------------------------------------------------------------------ */

PyObject *fb_skip, *fb_skip_scope, *fb_run_only;

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

PyObject *fb_add_mark(PyObject *module, const char *name) {
    Mark *mark = PyObject_New(Mark, &mark_type);
    if (mark == NULL) return NULL;
    mark->name = name;
    return PyModule_AddObjectRef(module, name, (PyObject *)mark) < 0 ? NULL : (PyObject *)mark;
}

/* A continuation reads the frame's own cells as free variables; an empty one is an unbound local all the same. */
static PyObject *check_filled(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count) {
    if (count != 2 || !PyCell_Check(given[0])) return PyErr_Format(PyExc_TypeError, "check_filled() takes a cell and a name");
    if (PyCell_GET(given[0]) != NULL) Py_RETURN_NONE;
    return PyErr_Format(PyExc_UnboundLocalError, "cannot access local variable '%U' where it is not associated with a value", given[1]);
}

static PyMethodDef methods[] = {
    {"go_on", _PyCFunction_CAST(go_on), METH_FASTCALL,
     "go_on(function, arguments): call a function with the items of a list, which is emptied: the function alone holds them."},
    {"check_filled", _PyCFunction_CAST(check_filled), METH_FASTCALL,
     "check_filled(cell, name): raise what reading a local variable in an empty cell raises."},
    {NULL, NULL, 0, NULL},
};

int fb_frame_init(PyObject *module) {
#if PY_VERSION_HEX >= 0x030C0000
    for (int i = 0; i < 3; i++) lone_return[i].op.code = i == 1 ? RETURN_VALUE : NOP;
#endif
    if (PyType_Ready(&mark_type) < 0) return -1;
    fb_skip = fb_add_mark(module, "SKIP");
    fb_skip_scope = fb_add_mark(module, "SKIP_SCOPE");
    fb_run_only = fb_add_mark(module, "RUN_ONLY");
    if (fb_skip == NULL || fb_skip_scope == NULL || fb_run_only == NULL || PyModule_AddFunctions(module, methods) < 0) return -1;
    return fb_view_init(module) < 0 || fb_entries_init(module) < 0 || fb_callback_init(module) < 0 ? -1 : 0;
}
