/* Shared by the files of the frame hook: frame.c (the hook), entries.c (what was compiled, by code object),
 * callback.c (settings of threads), view.c (the Frame that a callback sees). */
#ifndef FIREBRICK_HOOK_H
#define FIREBRICK_HOOK_H

#include "native.h"

/* ---- entries.c ---------------------------------------------------------------- */

typedef struct Site Site;

/* What was compiled for one code object under one set of guards; a skip mark of one scope has no plan. */
typedef struct Entry {
    PyObject_HEAD
    struct Entry *next; /* owned */
    Site *site;         /* NULL once removed */
    PyObject *plan, *code;
    PyObject *function; /* kept between calls without globals, builtins and closure, so that it keeps nothing of the user's alive */
    int lent;           /* a call is using `function` */
    int many;           /* it is for many sizes: behind those that are for one */
    PyObject *scope;      /* compared, never used: the weak reference below tells when it dies */
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

/* The site of a code object; NULL when it has none. */
Site *fb_site_find(PyCodeObject *code);
/* The same, made if need be; NULL with an exception. */
Site *fb_site_make(PyCodeObject *code);
/* The entry of a scope, or of any with `any_scope`, whose guards hold, moved to the front; a new reference, or NULL.
 * `skip` is set when a skip mark of the scope was met. */
Entry *fb_site_match(Site *site, const PyObject *scope, int any_scope, const FbFrame *view, int *skip);
/* Puts a callback's answer into effect; 0, or -1 with an exception. */
int fb_site_answer(Site *site, PyObject *scope, PyObject *answer);
int fb_entries_init(PyObject *module);

/* ---- callback.c ---------------------------------------------------------------- */

enum Mode { OFF, CAPTURE, RUN_ONLY };

/* Settings of one thread; owned by the dict of its PyThreadState. */
typedef struct {
    PyObject_HEAD
    PyObject *callback, *scope;
    enum Mode mode;
    int busy; /* a callback of this thread is running: nothing is offered, nothing compiled is used */
} Thread;

/* Of the calling thread; NULL when it never had a callback. */
extern _Thread_local Thread *fb_thread;
int fb_callback_init(PyObject *module);

/* ---- view.c ---------------------------------------------------------------------- */

/* How many of a code's first local variables are arguments. */
static inline Py_ssize_t fb_argument_slots(const PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

/* A Frame for a call of the function with these argument slots. */
PyObject *fb_view_make(PyFunctionObject *function, PyObject *const *values);
int fb_view_init(PyObject *module);

/* ---- frame.c --------------------------------------------------------------------- */

/* Puts the hook in or takes it out. */
void fb_hook_install(int wanted);

/* A constant of the protocol between the hook and callbacks. */
PyObject *fb_add_mark(PyObject *module, const char *name);
extern PyObject *fb_skip, *fb_skip_scope, *fb_run_only;

#endif
