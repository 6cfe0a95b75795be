/* The Python type of guard plans. */
#include "plan.h"

#include <stddef.h>

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

int fb_plan_has_sizes(PyObject *plan) {
    const Plan *one = (const Plan *)plan;
    for (int32_t i = 0; i < one->group_count; i++) {
        if (one->groups[i].kind == GROUP_SHAPE) return 1;
    }
    return 0;
}

void fb_plan_set_owner(PyObject *plan, void *owner, void (*drop)(void *owner)) {
    ((Plan *)plan)->owner = owner;
    ((Plan *)plan)->drop = drop;
}

enum FbPlanState fb_plan_state(PyObject *plan) {
    return ((Plan *)plan)->dead ? PLAN_DEAD : ((Plan *)plan)->owner != NULL ? PLAN_OWNED : PLAN_FREE;
}

static void plan_dealloc(PyObject *self) {
    Plan *plan = (Plan *)self;
    PyObject_GC_UnTrack(self);
    if (plan->token != NULL) ((Token *)plan->token)->plan = NULL;
    for (int32_t i = 0; i < plan->node_count; i++) Py_XDECREF(plan->nodes[i].key);
    for (int32_t i = 0; i < plan->check_count; i++) fb_check_clear(&plan->checks[i]);
    PyMem_Free(plan->nodes);
    PyMem_Free(plan->checks);
    for (int32_t i = 0; i < plan->group_count; i++) fb_group_clear(&plan->groups[i]);
    for (int32_t i = 0; i < plan->lane_count; i++) fb_lane_free(&plan->lanes[i]);
    PyMem_Free(plan->groups);
    PyMem_Free(plan->lanes);
    PyMem_Free(plan->pinned);
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
    if (op < 0 || op >= OP_COUNT || (op == OP_LOCAL || op == OP_FREE || op == OP_FUNCTION_PART ? node->index < 0 : 0))
        return FB_RAISE(PyExc_ValueError, "a node of a plan is malformed: %R", row);
    return 0;
}

/* Places in the arrays are trusted afterwards, so that they are tested here. */
static int well_formed(const Plan *plan) {
    for (int32_t i = 0; i < plan->node_count; i++) {
        const Node *node = &plan->nodes[i];
        if (node->op <= OP_LAST_ROOT ? node->parent != -1 : node->parent < 0 || node->parent >= i) return 0;
        if (node->end <= i || node->end > plan->node_count || node->volatile_begin <= i || node->volatile_begin > node->end) return 0;
        if (node->checks < 0 || node->volatile_checks < node->checks || node->checks_end < node->volatile_checks || node->checks_end > plan->check_count) return 0;
        for (int32_t j = node->checks; j < node->checks_end; j++) {
            if (plan->checks[j].kind == CHECK_SAME && (plan->checks[j].number < 0 || plan->checks[j].number > i)) return 0;
        }
    }
    return 1;
}

static int make_room(Plan *plan, size_t nodes, size_t checks, size_t states, size_t groups) {
    plan->nodes = PyMem_Calloc(nodes + 1, sizeof(Node));
    plan->lanes = PyMem_Calloc(nodes + 1, sizeof(Lane));
    plan->pinned = PyMem_Calloc(nodes + 1, 1);
    plan->checks = PyMem_Calloc(checks + 1, sizeof(Check));
    plan->states = PyMem_Calloc(states + 1, sizeof(FbState));
    plan->groups = PyMem_Calloc(groups + 1, sizeof(Group));
    plan->scratch.values = PyMem_Calloc(nodes + 1, sizeof(PyObject *));
    plan->scratch.fresh = PyMem_Calloc(nodes + 1, 1);
    plan->scratch.changed = PyMem_Calloc(nodes + 1, sizeof(int32_t));
    Token *token = PyObject_New(Token, &token_type);
    plan->token = (PyObject *)token;
    if (token != NULL) token->plan = plan;
    if (plan->nodes == NULL || plan->lanes == NULL || plan->pinned == NULL || plan->checks == NULL || plan->states == NULL || plan->groups == NULL ||
        plan->scratch.values == NULL || plan->scratch.fresh == NULL || plan->scratch.changed == NULL || token == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int fill_nodes(Plan *plan, PyObject *nodes) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(nodes); i++) {
        Node *node = &plan->nodes[plan->node_count++];
        if (read_node(node, PyList_GET_ITEM(nodes, i)) < 0) return -1;
        plan->makes_objects |= node->op >= OP_MAKES_OBJECT;
        if (node->op <= OP_LAST_ROOT) plan->lanes[plan->lane_count++].root = (int32_t)i;
    }
    return 0;
}

static int fill_plan(Plan *plan, PyObject *nodes, PyObject *checks, PyObject *states, PyObject *groups) {
    if (make_room(plan, (size_t)PyList_GET_SIZE(nodes), (size_t)PyList_GET_SIZE(checks), (size_t)PyList_GET_SIZE(states),
                  (size_t)PyList_GET_SIZE(groups)) < 0) {
        return -1;
    }
    PyObject *died = PyCFunction_New(&object_died_method, plan->token);
    int status = died == NULL ? -1 : fill_nodes(plan, nodes);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(checks) && status == 0; i++) {
        status = fb_check_make(&plan->checks[plan->check_count++], PyList_GET_ITEM(checks, i), died);
    }
    Py_XDECREF(died);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(states) && status == 0; i++) {
        FbState *state = &plan->states[plan->state_count++];
        long long value = 0;
        status = PyArg_ParseTuple(PyList_GET_ITEM(states, i), "iL", &state->kind, &value) ? 0 : -1;
        state->value = value;
        if (status == 0 && (state->kind < 0 || state->kind >= STATE_COUNT)) status = FB_RAISE(PyExc_ValueError, "no state has number %d", state->kind);
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(groups) && status == 0; i++) {
        status = fb_group_make(&plan->groups[plan->group_count++], PyList_GET_ITEM(groups, i), plan->node_count);
    }
    if (status < 0 || well_formed(plan)) return status;
    return FB_RAISE(PyExc_ValueError, "the nodes of a plan must come after their parents, each with places inside the plan");
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *nodes, *checks, *states, *groups;
    static char *names[] = {"nodes", "checks", "states", "groups", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!:GuardPlan", names, &PyList_Type, &nodes, &PyList_Type, &checks, &PyList_Type, &states,
                                     &PyList_Type, &groups)) {
        return NULL;
    }
    Plan *plan = (Plan *)type->tp_alloc(type, 0);
    if (plan != NULL && fill_plan(plan, nodes, checks, states, groups) < 0) Py_CLEAR(plan);
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
    {"failing", plan_failing, METH_O, "failing(frame): the number of the check that fails (groups follow checks), -1 - i for the i-th state, None when all hold."},
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
    .tp_doc = "GuardPlan(nodes, checks, states, groups): see walk.c; capture/guards/guard_plan.py builds them.",
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
    static const char *const groups[] = {FB_GROUPS(FB_NAME)}, *const shape_ops[] = {FB_SHAPE_OPS(FB_NAME)};
#undef FB_NAME
    if (PyType_Ready(&token_type) < 0 || PyModule_AddType(module, &fb_plan_type) < 0) return -1;
    if (add_numbers(module, "OPS", ops, OP_COUNT) < 0 || add_numbers(module, "CHECKS", checks, CHECK_COUNT) < 0 ||
        add_numbers(module, "STATES", states, STATE_COUNT) < 0 || add_numbers(module, "GROUPS", groups, GROUP_COUNT) < 0 ||
        add_numbers(module, "SHAPE_OPS", shape_ops, SHAPE_COUNT) < 0 || add_function_parts(module) < 0) {
        return -1;
    }
    return fb_checks_init(module) < 0 || fb_state_init(module) < 0 ? -1 : 0;
}
