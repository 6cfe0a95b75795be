/* Guard plans: the guards of one entry as a tree of places to look at, evaluated without Python code.
 *
 * A plan is an array of nodes in preorder. A node says how to get its value from its parent's (an argument, a
 * dict item, an attribute ...) and which checks the value must pass. Shared prefixes are one node.
 *
 * Dicts are guarded by version (PyDictObject.ma_version_tag changes with every change of the dict and is never
 * used twice). While the dict at a node is the same object with the same version as at the last success, its
 * items are the same objects, so they are not looked up again, and checks that only depend on identity are
 * skipped with everything below them. When the version differs the facts are checked in full, and on success the
 * new version is kept: a counter in a module's dict costs a few lookups a call, never a recompile. Values are
 * borrowed: an item lives while its dict is unchanged, and parents are checked before children. Only when a
 * node has to run code of the user's (a property) are all values of that check held by references.
 */
#include "native.h"

#include "plan.h"

#include <stddef.h>
#include <string.h>

/* ---- the plan ------------------------------------------------------------------ */

typedef struct {
    uint8_t op;
    uint8_t versioned; /* the value is a dict with items or keys that are guarded: use its version */
    int32_t parent, end, volatile_begin; /* subtree is [i, end); from volatile_begin on it needs a look on every call */
    int32_t checks, volatile_checks, checks_end; /* [checks, volatile_checks) are skipped for an unchanged item or dict */
    Py_ssize_t index;
    PyObject *key;
    /* The last success. */
    PyObject *dict, *cached;
    uint64_t version, candidate;
} Node;

typedef struct {
    PyObject **values;
    char *fresh; /* the dict at this node is as it was at the last success */
    int careful; /* values are owned */
    int nested;  /* another check of this plan is under way: leave the caches alone */
    int32_t used;
    int32_t *changed; /* versioned nodes whose dict was looked at anew */
    int32_t changed_count;
} Scratch;

typedef struct {
    PyObject_HEAD
    Node *nodes;
    Check *checks;
    int32_t node_count, check_count;
    FbState *states;
    int32_t state_count;
    Scratch scratch;
    int busy, careful, makes_objects, dead, failed; /* failed: the check, or -1 - state, that failed last */
    void *owner;
    void (*drop)(void *owner);
    PyObject *token; /* leads weak reference callbacks here while the plan lives */
} Plan;

enum { FAIL = 0, PASS = 1, RESTART = 2 };

static inline uint64_t dict_version(PyObject *dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return ((PyDictObject *)dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

/* ---- getting values -------------------------------------------------------------- */

/* The item of a dict, borrowed; NULL without an exception when there is none. */
static PyObject *dict_item(PyObject *dict, PyObject *key) {
    PyObject *value = PyDict_GetItemWithError(dict, key);
    if (value == NULL) PyErr_Clear();
    return value;
}

static PyObject *instance_dict(PyObject *object) {
    PyObject **place = _PyObject_GetDictPtr(object);
    if (place == NULL) {
        PyErr_Clear();
        return NULL;
    }
    return *place;
}

/* `object.name`, a new reference or NULL. `*runs_code` is set before anything of the user's is run; then NULL is returned unless `careful`. */
static PyObject *attribute(PyObject *object, PyObject *name, int careful, int *runs_code) {
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *found = _PyType_Lookup(type, name);
        if (found != NULL && Py_TYPE(found)->tp_descr_set != NULL) {
            if (!Py_IS_TYPE(found, &PyGetSetDescr_Type) && !Py_IS_TYPE(found, &PyMemberDescr_Type) && !careful) {
                *runs_code = 1;
                return NULL;
            }
        } else {
            PyObject *dict = instance_dict(object), *value = dict == NULL ? NULL : dict_item(dict, name);
            if (value != NULL) return Py_NewRef(value);
            if (found == NULL) return NULL;
            if (Py_TYPE(found)->tp_descr_get == NULL) return Py_NewRef(found);
        }
    } else if (!PyModule_Check(object) && !careful) {
        *runs_code = 1;
        return NULL;
    }
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL) PyErr_Clear();
    return value;
}

static PyObject *sequence_item(PyObject *sequence, Py_ssize_t index) {
    if (PyTuple_Check(sequence)) {
        if (index < 0) index += PyTuple_GET_SIZE(sequence);
        return index >= 0 && index < PyTuple_GET_SIZE(sequence) ? PyTuple_GET_ITEM(sequence, index) : NULL;
    }
    if (PyList_Check(sequence)) {
        if (index < 0) index += PyList_GET_SIZE(sequence);
        return index >= 0 && index < PyList_GET_SIZE(sequence) ? PyList_GET_ITEM(sequence, index) : NULL;
    }
    return NULL;
}

static PyObject *dict_key(PyObject *dict, Py_ssize_t index) {
    PyObject *key = NULL;
    Py_ssize_t place = 0;
    if (!PyDict_Check(dict)) return NULL;
    while (PyDict_Next(dict, &place, &key, NULL)) {
        if (index-- == 0) return key;
    }
    return NULL;
}

/* Values that are borrowed from the parent's value or the frame; NULL when there is none. */
static PyObject *borrowed_value(const Node *node, PyObject *parent, const FbFrame *frame) {
    switch (node->op) {
    case OP_LOCAL: return frame->locals[node->index];
    case OP_FREE: return frame->closure != NULL && node->index < PyTuple_GET_SIZE(frame->closure) ? PyTuple_GET_ITEM(frame->closure, node->index) : NULL;
    case OP_GLOBALS: return frame->globals;
    case OP_BUILTINS: return frame->builtins;
    case OP_CONST: return node->key;
    case OP_TYPE: return (PyObject *)Py_TYPE(parent);
    case OP_INSTANCE_DICT: return instance_dict(parent);
    case OP_DICT_ITEM: return PyDict_Check(parent) ? dict_item(parent, node->key) : NULL;
    case OP_SEQUENCE_ITEM: return sequence_item(parent, node->index);
    case OP_CONTENTS: return PyCell_Check(parent) ? PyCell_GET(parent) : NULL;
    case OP_CLASS_ITEM: return PyType_Check(parent) ? _PyType_Lookup((PyTypeObject *)parent, node->key) : NULL;
    case OP_DICT_KEY: return dict_key(parent, node->index);
    case OP_FUNCTION_PART:
        if (!PyFunction_Check(parent)) return NULL;
        parent = *(PyObject **)((char *)parent + node->index);
        return parent == NULL ? Py_None : parent;
    case OP_METHOD_SELF: return PyMethod_Check(parent) ? PyMethod_GET_SELF(parent) : NULL;
    case OP_METHOD_FUNCTION: return PyMethod_Check(parent) ? PyMethod_GET_FUNCTION(parent) : NULL;
    default: return NULL;
    }
}

/* ---- checking -------------------------------------------------------------------- */

static inline PyObject *keep(Scratch *scratch, PyObject *value) { return scratch->careful ? Py_XNewRef(value) : value; }

/* Gets the value of a node that makes a new object; it is owned by the scratch whatever the mode. */
static int made_value(Plan *plan, const Node *node, PyObject *parent, Scratch *scratch, PyObject **value) {
    int runs_code = 0;
    if (node->op == OP_ATTRIBUTE) {
        *value = attribute(parent, node->key, scratch->careful, &runs_code);
    } else if (scratch->careful || PyTuple_CheckExact(parent) || PyList_CheckExact(parent)) {
        *value = PyObject_GetItem(parent, node->key);
        if (*value == NULL) PyErr_Clear();
    } else {
        runs_code = 1;
    }
    if (runs_code) {
        plan->careful = 1;
        return RESTART;
    }
    return *value != NULL ? PASS : FAIL;
}

static int run_checks(Plan *plan, int32_t from, int32_t end, PyObject *value, Scratch *scratch) {
    for (int32_t i = from; i < end; i++) {
        Check *check = &plan->checks[i];
        int holds;
        switch (check->kind) { /* the cheap and frequent ones here, the rest in checks.c */
        case CHECK_TYPE: holds = (PyObject *)Py_TYPE(value) == check->object; break;
        case CHECK_IS: holds = value == check->object; break;
        case CHECK_IS_NOT: holds = value != check->object; break;
        case CHECK_TENSOR: holds = fb_check_tensor(check, value); break;
        case CHECK_SAME: holds = value == scratch->values[check->number]; break;
        default: holds = fb_check_other(check, value);
        }
        if (!holds) {
            plan->failed = i;
            return FAIL;
        }
    }
    return PASS;
}

/* Looks at one node; `*next` is the node to go on with. */
static int visit(Plan *plan, int32_t i, const FbFrame *frame, Scratch *scratch, int32_t *next) {
    Node *node = &plan->nodes[i];
    PyObject *parent = node->parent >= 0 ? scratch->values[node->parent] : NULL, *value;
    int unchanged = node->op == OP_DICT_ITEM && scratch->fresh[node->parent];
    plan->failed = node->checks;
    if (unchanged) {
        value = keep(scratch, node->cached);
    } else if (node->op >= OP_MAKES_OBJECT) {
        int status = made_value(plan, node, parent, scratch, &value);
        if (status != PASS) return status;
    } else {
        value = keep(scratch, borrowed_value(node, parent, frame));
        if (value == NULL) return FAIL;
        if (!scratch->nested) node->cached = value;
    }
    scratch->values[i] = value;
    scratch->used = i + 1;
    scratch->fresh[i] = 0;
    *next = i + 1;
    if (node->versioned) {
        if (!PyDict_Check(value)) return FAIL;
        uint64_t version = dict_version(value);
        if (node->dict == value && node->version == version && !scratch->nested) {
            scratch->fresh[i] = 1;
            *next = node->volatile_begin;
            return run_checks(plan, node->volatile_checks, node->checks_end, value, scratch);
        }
        if (!scratch->nested) {
            node->dict = NULL; /* items are looked up anew: what was cached is void until all checks pass */
            node->candidate = version;
            scratch->changed[scratch->changed_count++] = i;
        }
        unchanged = 0; /* it is the same dict, but its items must be checked */
    }
    return run_checks(plan, unchanged ? node->volatile_checks : node->checks, node->checks_end, value, scratch);
}

static void release(Plan *plan, Scratch *scratch) {
    for (int32_t i = 0; i < scratch->used; i++) {
        if (scratch->careful || plan->nodes[i].op >= OP_MAKES_OBJECT) Py_CLEAR(scratch->values[i]);
    }
    scratch->used = 0;
}

static int check_nodes(Plan *plan, const FbFrame *frame, Scratch *scratch) {
    int32_t i = 0;
    scratch->careful = plan->careful;
    scratch->used = scratch->changed_count = 0;
    if (plan->careful) memset(scratch->values, 0, sizeof(PyObject *) * (size_t)plan->node_count);
    while (i < plan->node_count) {
        /* A skipped subtree leaves stale values behind, which nothing refers to but `release`. */
        int32_t next = i + 1;
        int status = visit(plan, i, frame, scratch, &next);
        if (status != PASS) return status;
        i = next;
    }
    return PASS;
}

/* The facts hold for these dicts as they are now. */
static void commit(Plan *plan, const Scratch *scratch) {
    for (int32_t i = 0; i < scratch->changed_count; i++) {
        Node *node = &plan->nodes[scratch->changed[i]];
        node->dict = scratch->values[scratch->changed[i]];
        node->version = node->candidate;
    }
}

static int check_once(Plan *plan, const FbFrame *frame, Scratch *scratch) {
    for (int32_t i = 0; i < plan->state_count; i++) {
        if (fb_state_read(plan->states[i].kind) != plan->states[i].value) {
            plan->failed = -1 - i;
            return FAIL;
        }
    }
    int status = check_nodes(plan, frame, scratch);
    if (status == PASS && !scratch->nested) commit(plan, scratch);
    return status;
}

static int check_nested(Plan *plan, const FbFrame *frame) {
    Scratch scratch = {.nested = 1};
    int status = FAIL;
    scratch.values = PyMem_Calloc((size_t)plan->node_count + 1, sizeof *scratch.values);
    scratch.fresh = PyMem_Calloc((size_t)plan->node_count + 1, 1);
    if (scratch.values != NULL && scratch.fresh != NULL) {
        while ((status = check_once(plan, frame, &scratch)) == RESTART) release(plan, &scratch);
        release(plan, &scratch);
    }
    PyMem_Free(scratch.values);
    PyMem_Free(scratch.fresh);
    return status == PASS;
}

int fb_plan_check(PyObject *self, const FbFrame *frame) {
    Plan *plan = (Plan *)self;
    int status;
    if (plan->dead) return 0;
    if (plan->busy) return check_nested(plan, frame);
    plan->busy = 1;
    Py_INCREF(plan);
    while ((status = check_once(plan, frame, &plan->scratch)) == RESTART) release(plan, &plan->scratch);
    if (plan->scratch.careful || plan->makes_objects) release(plan, &plan->scratch);
    plan->busy = 0;
    status = status == PASS && !plan->dead;
    Py_DECREF(plan);
    return status;
}

/* ---- life of a plan ------------------------------------------------------------------ */

/* Where weak references of a plan call back to: a capsule's pointer, cleared when the plan goes first. */
typedef struct {
    PyObject_HEAD
    Plan *plan;
} Token;

static void token_dealloc(PyObject *token) { PyObject_Free(token); }

static PyTypeObject token_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.PlanToken",
    .tp_basicsize = sizeof(Token),
    .tp_dealloc = token_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

static PyObject *object_died(PyObject *token, PyObject *reference) {
    Plan *plan = ((Token *)token)->plan;
    if (plan != NULL && !plan->dead) {
        plan->dead = 1;
        void (*drop)(void *) = plan->drop;
        void *owner = plan->owner;
        plan->drop = NULL;
        plan->owner = NULL;
        if (drop != NULL) drop(owner);
    }
    Py_RETURN_NONE;
}

static PyMethodDef object_died_method = {"object_died", object_died, METH_O, NULL};

void fb_plan_set_owner(PyObject *plan, void *owner, void (*drop)(void *owner)) {
    ((Plan *)plan)->owner = owner;
    ((Plan *)plan)->drop = drop;
}

static void plan_dealloc(PyObject *self) {
    Plan *plan = (Plan *)self;
    PyObject_GC_UnTrack(self);
    if (plan->token != NULL) ((Token *)plan->token)->plan = NULL;
    for (int32_t i = 0; i < plan->node_count; i++) Py_XDECREF(plan->nodes[i].key);
    for (int32_t i = 0; i < plan->check_count; i++) fb_check_clear(&plan->checks[i]);
    PyMem_Free(plan->nodes);
    PyMem_Free(plan->checks);
    PyMem_Free(plan->states);
    PyMem_Free(plan->scratch.values);
    PyMem_Free(plan->scratch.fresh);
    PyMem_Free(plan->scratch.changed);
    Py_XDECREF(plan->token);
    Py_TYPE(self)->tp_free(self);
}

static int plan_traverse(PyObject *self, visitproc visit, void *arg) {
    Plan *plan = (Plan *)self;
    for (int32_t i = 0; i < plan->node_count; i++) Py_VISIT(plan->nodes[i].key);
    for (int32_t i = 0; i < plan->check_count; i++) {
        if (plan->checks[i].reference == NULL) Py_VISIT(plan->checks[i].object);
    }
    return 0;
}

static int read_node(Node *node, PyObject *row) {
    int op, versioned;
    if (!PyArg_ParseTuple(row, "iiiinOiiii", &op, &node->parent, &node->end, &node->volatile_begin, &node->index, &node->key, &versioned,
                          &node->checks, &node->volatile_checks, &node->checks_end)) {
        node->key = NULL;
        return -1;
    }
    Py_INCREF(node->key);
    node->op = (uint8_t)op;
    node->versioned = (uint8_t)versioned;
    if (op < 0 || op >= OP_COUNT || (op == OP_LOCAL || op == OP_FREE || op == OP_FUNCTION_PART ? node->index < 0 : 0)) {
        PyErr_Format(PyExc_ValueError, "a node of a plan is malformed: %R", row);
        return -1;
    }
    return 0;
}

/* Places in the arrays are trusted afterwards, so that they are tested here. */
static int well_formed(const Plan *plan) {
    for (int32_t i = 0; i < plan->node_count; i++) {
        const Node *node = &plan->nodes[i];
        int root = node->op == OP_LOCAL || node->op == OP_FREE || node->op == OP_GLOBALS || node->op == OP_BUILTINS || node->op == OP_CONST;
        if (root ? node->parent != -1 : node->parent < 0 || node->parent >= i) return 0;
        if (node->end <= i || node->end > plan->node_count || node->volatile_begin <= i || node->volatile_begin > node->end) return 0;
        if (node->checks < 0 || node->volatile_checks < node->checks || node->checks_end < node->volatile_checks || node->checks_end > plan->check_count) return 0;
        for (int32_t j = node->checks; j < node->checks_end; j++) {
            if (plan->checks[j].kind == CHECK_SAME && (plan->checks[j].number < 0 || plan->checks[j].number > i)) return 0;
        }
    }
    return 1;
}

static int fill_plan(Plan *plan, PyObject *nodes, PyObject *checks, PyObject *states) {
    size_t node_count = (size_t)PyList_GET_SIZE(nodes), check_count = (size_t)PyList_GET_SIZE(checks), state_count = (size_t)PyList_GET_SIZE(states);
    plan->nodes = PyMem_Calloc(node_count + 1, sizeof(Node));
    plan->checks = PyMem_Calloc(check_count + 1, sizeof(Check));
    plan->states = PyMem_Calloc(state_count + 1, sizeof(FbState));
    plan->scratch.values = PyMem_Calloc(node_count + 1, sizeof(PyObject *));
    plan->scratch.fresh = PyMem_Calloc(node_count + 1, 1);
    plan->scratch.changed = PyMem_Calloc(node_count + 1, sizeof(int32_t));
    Token *token = PyObject_New(Token, &token_type);
    plan->token = (PyObject *)token;
    if (token != NULL) token->plan = plan;
    if (plan->nodes == NULL || plan->checks == NULL || plan->states == NULL || plan->scratch.values == NULL || plan->scratch.fresh == NULL ||
        plan->scratch.changed == NULL || token == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *died = PyCFunction_New(&object_died_method, plan->token);
    int status = died == NULL ? -1 : 0;
    for (size_t i = 0; i < node_count && status == 0; i++) {
        plan->node_count++;
        status = read_node(&plan->nodes[i], PyList_GET_ITEM(nodes, i));
        plan->makes_objects |= plan->nodes[i].op >= OP_MAKES_OBJECT;
    }
    for (size_t i = 0; i < check_count && status == 0; i++) {
        plan->check_count++;
        status = fb_check_make(&plan->checks[i], PyList_GET_ITEM(checks, i), died);
    }
    for (size_t i = 0; i < state_count && status == 0; i++) {
        long long value;
        plan->state_count++;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(states, i), "iL", &plan->states[i].kind, &value)) status = -1;
        else plan->states[i].value = value;
    }
    Py_XDECREF(died);
    if (status == 0 && !well_formed(plan)) {
        PyErr_SetString(PyExc_ValueError, "the nodes of a plan must come after their parents, each with places inside the plan");
        status = -1;
    }
    return status;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *nodes, *checks, *states;
    static char *names[] = {"nodes", "checks", "states", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!:GuardPlan", names, &PyList_Type, &nodes, &PyList_Type, &checks, &PyList_Type, &states)) return NULL;
    Plan *plan = (Plan *)type->tp_alloc(type, 0);
    if (plan != NULL && fill_plan(plan, nodes, checks, states) < 0) Py_CLEAR(plan);
    return (PyObject *)plan;
}

/* ---- methods --------------------------------------------------------------------------- */

static PyObject *plan_check(PyObject *self, PyObject *view) {
    const FbFrame *frame = fb_frame_of(view);
    return frame == NULL ? NULL : PyBool_FromLong(fb_plan_check(self, frame));
}

static PyObject *plan_failing(PyObject *self, PyObject *view) {
    const FbFrame *frame = fb_frame_of(view);
    if (frame == NULL) return NULL;
    if (fb_plan_check(self, frame)) Py_RETURN_NONE;
    return PyLong_FromLong(((Plan *)self)->failed);
}

static PyObject *plan_time(PyObject *self, PyObject *args) {
    PyObject *view;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "On:time", &view, &count)) return NULL;
    const FbFrame *frame = fb_frame_of(view);
    if (frame == NULL) return NULL;
    Py_ssize_t passed = 0;
    for (Py_ssize_t i = 0; i < count; i++) passed += fb_plan_check(self, frame);
    return PyLong_FromSsize_t(passed);
}

static PyObject *plan_get_dead(PyObject *self, void *unused) { return PyBool_FromLong(((Plan *)self)->dead); }
static PyObject *plan_get_owned(PyObject *self, void *unused) { return PyBool_FromLong(((Plan *)self)->owner != NULL); }

static PyMethodDef plan_methods[] = {
    {"check", plan_check, METH_O, "check(frame): whether all guards hold."},
    {"failing", plan_failing, METH_O, "failing(frame): the number of the check that fails, -1 - i for the i-th state, None when all hold."},
    {"repeat", plan_time, METH_VARARGS, "repeat(frame, count): check so often, to measure; how often all guards held."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef plan_getset[] = {
    {"dead", plan_get_dead, NULL, "An object that is guarded by identity is gone; the plan can't hold again.", NULL},
    {"owned", plan_get_owned, NULL, "An entry uses the plan.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject fb_plan_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.GuardPlan",
    .tp_basicsize = sizeof(Plan),
    .tp_new = plan_new,
    .tp_dealloc = plan_dealloc,
    .tp_traverse = plan_traverse,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_doc = "GuardPlan(nodes, checks, states): see guards.c; capture/guards.py builds them.",
    .tp_methods = plan_methods,
    .tp_getset = plan_getset,
};

static int add_object(PyObject *module, const char *name, PyObject *object) {
    int status = PyModule_AddObjectRef(module, name, object);
    Py_DECREF(object);
    return status;
}

/* Names to numbers, in the order of the enums. */
static int add_numbers(PyObject *module, const char *name, const char *const *names, int count) {
    PyObject *numbers = PyDict_New();
    for (int i = 0; i < count && numbers != NULL; i++) {
        PyObject *number = PyLong_FromLong(i);
        if (number == NULL || PyDict_SetItemString(numbers, names[i], number) < 0) Py_CLEAR(numbers);
        Py_XDECREF(number);
    }
    return numbers == NULL ? -1 : add_object(module, name, numbers);
}

static int add_function_parts(PyObject *module) {
    PyObject *parts = Py_BuildValue("{s:n,s:n,s:n,s:n,s:n}", "__code__", offsetof(PyFunctionObject, func_code), "__defaults__",
                                    offsetof(PyFunctionObject, func_defaults), "__kwdefaults__", offsetof(PyFunctionObject, func_kwdefaults),
                                    "__closure__", offsetof(PyFunctionObject, func_closure), "__globals__", offsetof(PyFunctionObject, func_globals));
    return parts == NULL ? -1 : add_object(module, "FUNCTION_PARTS", parts);
}

int fb_guards_init(PyObject *module) {
#define FB_NAME(name) #name,
    static const char *const ops[] = {FB_OPS(FB_NAME)}, *const checks[] = {FB_CHECKS(FB_NAME)}, *const states[] = {FB_STATES(FB_NAME)};
#undef FB_NAME
    if (PyType_Ready(&token_type) < 0 || PyType_Ready(&fb_plan_type) < 0) return -1;
    if (PyModule_AddObjectRef(module, "GuardPlan", (PyObject *)&fb_plan_type) < 0) return -1;
    if (add_numbers(module, "OPS", ops, OP_COUNT) < 0 || add_numbers(module, "CHECKS", checks, CHECK_COUNT) < 0 ||
        add_numbers(module, "STATES", states, STATE_COUNT) < 0 || add_function_parts(module) < 0) {
        return -1;
    }
    return fb_checks_init(module) < 0 || fb_state_init(module) < 0 ? -1 : 0;
}
