/* What was compiled, by code object: a list of entries that hangs on the code and dies with it. */
#include "hook.h"

#include <stddef.h>
#include <structmember.h>

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

static Py_ssize_t extra_index;
static Site all_sites = {.previous = &all_sites, .following = &all_sites};
static PyTypeObject entry_type;

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

Site *fb_site_find(PyCodeObject *code) {
    void *extra = NULL;
    if (CODE_GET_EXTRA((PyObject *)code, extra_index, &extra) < 0) PyErr_Clear();
    return extra;
}

Site *fb_site_make(PyCodeObject *code) {
    Site *site = fb_site_find(code);
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

static PyObject *entry_get_scope(PyObject *self, void *unused) {
    PyObject *hold = ((Entry *)self)->scope_hold;
    PyObject *scope = hold == NULL ? NULL : PyWeakref_CheckRef(hold) ? weak_target(hold) : Py_NewRef(hold);
    return scope == NULL ? Py_NewRef(Py_None) : scope;
}

static PyObject *entry_get_original(PyObject *self, void *unused) {
    Site *site = ((Entry *)self)->site;
    return Py_NewRef(site == NULL ? Py_None : (PyObject *)site->code);
}

static PyMemberDef entry_members[] = {
    {"plan", T_OBJECT, offsetof(Entry, plan), READONLY, "The guard plan; None for a skip mark."},
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, "The compiled code; None for a skip mark."},
    {"hits", T_PYSSIZET, offsetof(Entry, hits), READONLY, "How often the entry was used."},
    {NULL},
};

static PyGetSetDef entry_getset[] = {
    {"scope", entry_get_scope, NULL, "The scope that the entry belongs to.", NULL},
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
    .tp_members = entry_members,
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
/* ---- using and making entries ----------------------------------------------- */

Entry *fb_site_match(Site *site, const PyObject *scope, int any_scope, const FbFrame *view, int *skip) {
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
                if (!disturbed && !entry->many && link != &site->first) { /* last hit first */
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
    PyObject *changes = Py_BuildValue("{s:n,s:i,s:i,s:i}", "co_argcount", fb_argument_slots(code), "co_kwonlyargcount", 0, "co_posonlyargcount", 0,
                                      "co_flags", flags);
    PyObject *plain = replace == NULL || none == NULL || changes == NULL ? NULL : PyObject_Call(replace, none, changes);
    Py_XDECREF(replace);
    Py_XDECREF(none);
    Py_XDECREF(changes);
    return plain;
}

static Entry *site_add(Site *site, PyObject *scope, PyObject *plan, PyCodeObject *code) {
    PyObject *plain = NULL;
    if (plan != NULL && fb_plan_state(plan) != PLAN_FREE)
        return (void *)PyErr_Format(PyExc_ValueError, fb_plan_state(plan) == PLAN_DEAD ? "an object that the plan knows by identity is gone"
                                                                                       : "the plan belongs to another entry");
    if (code != NULL) {
        if (fb_argument_slots(code) != fb_argument_slots(site->code) || code->co_nfreevars != site->code->co_nfreevars)
            return (void *)PyErr_Format(
                PyExc_ValueError, "code compiled for %U has %zd argument slots and %d free variables, it needs %zd and %d",
                site->code->co_qualname, fb_argument_slots(code), code->co_nfreevars, fb_argument_slots(site->code), site->code->co_nfreevars);
        if ((plain = with_plain_slots(code)) == NULL) return NULL;
        Site *compiled = fb_site_make((PyCodeObject *)plain);
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
    entry->many = plan != NULL && fb_plan_has_sizes(plan);
    Entry **link = &site->first;
    while (entry->many && *link != NULL && !(*link)->many) link = &(*link)->next;
    entry->next = *link;
    *link = entry; /* the list takes the reference */
    site->changes++;
    if (plan != NULL) fb_plan_set_owner(plan, entry, entry_outlived);
    return entry;
}

int fb_site_answer(Site *site, PyObject *scope, PyObject *answer) {
    if (answer == Py_None) return 0;
    if (answer == fb_skip) {
        site->skip = 1;
        return 0;
    }
    if (answer == fb_skip_scope) return site_add(site, scope, NULL, NULL) == NULL ? -1 : 0;
    if (PyTuple_Check(answer) && PyTuple_GET_SIZE(answer) == 2) {
        PyObject *plan = PyTuple_GET_ITEM(answer, 0), *code = PyTuple_GET_ITEM(answer, 1);
        if (PyObject_TypeCheck(plan, &fb_plan_type) && PyCode_Check(code)) {
            if (fb_plan_state(plan) == PLAN_DEAD) return 0; /* it could never hold */
            return site_add(site, scope, plan, (PyCodeObject *)code) == NULL ? -1 : 0;
        }
    }
    return FB_RAISE(PyExc_TypeError, "a frame callback returns None, SKIP, SKIP_SCOPE or (GuardPlan, code)");
}

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
        Site *site = fb_site_find((PyCodeObject *)code);
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
    Site *site = fb_site_make((PyCodeObject *)code);
    Entry *entry = site == NULL ? NULL : site_add(site, scope, plan, (PyCodeObject *)compiled);
    return Py_XNewRef((PyObject *)entry);
}

static PyObject *skip_code(PyObject *self, PyObject *code) {
    if (!PyCode_Check(code)) return PyErr_Format(PyExc_TypeError, "skip_code needs a code object");
    Site *site = fb_site_make((PyCodeObject *)code);
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
    {"entries", entries, METH_VARARGS, "entries(code=None): the entries of a code object, or all."},
    {"add_entry", add_entry, METH_VARARGS, "add_entry(code, plan, compiled, scope=None): add an entry without a callback."},
    {"skip_code", skip_code, METH_O, "Never offer this code to a callback."},
    {"reset", reset, METH_NOARGS, "Remove all entries and skip marks."},
    {NULL, NULL, 0, NULL},
};

int fb_entries_init(PyObject *module) {
    if (PyModule_AddType(module, &entry_type) < 0) return -1;
    extra_index = CODE_REQUEST_EXTRA(site_free);
    if (extra_index < 0) return FB_RAISE(PyExc_ImportError, "firebrick: no place is left for data of code objects");
    return PyModule_AddFunctions(module, methods);
}
