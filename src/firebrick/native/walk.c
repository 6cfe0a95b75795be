/* Guard plans: the guards of one entry as a tree of places to look at, evaluated without Python code.
 *
 * A plan is an array of nodes in preorder. A node says how to get its value from its parent's (an argument, a
 * dict item, an attribute ...) and which checks the value must pass. Shared prefixes are one node.
 *
 * Dicts are guarded by version (PyDictObject.ma_version_tag changes with every change of the dict and is never
 * used twice; see versions.c). While the dict at a node is the same object with the same version as at the last success, its
 * items are the same objects, so they are not looked up again, and checks that only depend on identity are
 * skipped with everything below them. When the version differs the facts are checked in full, and on success the
 * new version is kept: a counter in a module's dict costs a few lookups a call, never a recompile. Values are
 * borrowed: an item lives while its dict is unchanged, and parents are checked before children. Only when a
 * node has to run code of the user's (a property) are all values of that check held by references.
 */
#include "plan.h"

#include <string.h>

enum { FAIL = 0, PASS = 1, RESTART = 2 };

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
    if (*place == NULL) { /* made when it is first asked for, as Python does: it has no items */
        PyObject *made = PyObject_GenericGetDict(object, NULL);
        if (made == NULL) PyErr_Clear();
        Py_XDECREF(made);
    }
    return *place;
}

/* Whether `object.name` is `__name__` or the like of a class, which runs no code of the user's. */
static int is_slot_of_class(PyObject *object, PyObject *name) {
    if (Py_TYPE(object)->tp_getattro != PyType_Type.tp_getattro) return 0;
    PyObject *found = _PyType_Lookup(Py_TYPE(object), name);
    return found != NULL && Py_IS_TYPE(found, &PyGetSetDescr_Type);
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
    } else if (!PyModule_Check(object) && !is_slot_of_class(object, name) && !careful) {
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

PyObject *fb_borrowed_value(const Node *node, PyObject *parent, const FbFrame *frame) {
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
    } else if (node->op == OP_CALL && scratch->careful) {
        *value = PyObject_CallOneArg(node->key, parent);
        if (*value == NULL) PyErr_Clear();
    } else if (node->op != OP_CALL && (scratch->careful || PyTuple_CheckExact(parent) || PyList_CheckExact(parent))) {
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
        value = keep(scratch, fb_borrowed_value(node, parent, frame));
        if (value == NULL) return FAIL;
        if (!scratch->nested) node->cached = value;
    }
    scratch->values[i] = value;
    scratch->used = i + 1;
    scratch->fresh[i] = 0;
    *next = i + 1;
    if (node->versioned && PyDict_Check(value)) {
        uint64_t version = *fb_dict_version(value);
        if (node->dict == value && node->version == version && !scratch->nested) {
            scratch->fresh[i] = 1;
            *next = node->volatile_begin;
            return run_checks(plan, node->volatile_checks, node->checks_end, value, scratch);
        }
        if (!scratch->nested) {
            node->dict = NULL; /* items are looked up anew: what was cached is void until all checks pass */
            node->candidate = fb_dict_use_version(value) ? *fb_dict_version(value) : 0;
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

/* The nodes [i, end), which are whole subtrees. A part that is skipped leaves stale values behind, which nothing
 * looks at but `release`. */
static int walk(Plan *plan, int32_t i, int32_t end, const FbFrame *frame, Scratch *scratch) {
    while (i < end) {
        int32_t next = i + 1;
        int status = visit(plan, i, frame, scratch, &next);
        if (status != PASS) return status;
        i = next;
    }
    return PASS;
}

/* Checks anew what a lane takes from a dict that has changed: its items must be the same objects and pass. */
static int recheck_dict(Plan *plan, int32_t i, LaneWord *word, const FbFrame *frame, Scratch *scratch) {
    Node *node = &plan->nodes[i];
    PyObject *dict = scratch->values[i];
    uint64_t version = *fb_dict_version(dict);
    scratch->fresh[i] = 0;
    if (run_checks(plan, node->checks, node->volatile_checks, dict, scratch) != PASS) return 0;
    for (int32_t child = i + 1; child < node->end; child = plan->nodes[child].end) {
        const Node *item = &plan->nodes[child];
        if (child < node->volatile_begin) {
            if (walk(plan, child, item->end, frame, scratch) != PASS) return 0;
        } else if (item->op == OP_DICT_ITEM) {
            PyObject *value = dict_item(dict, item->key);
            if (value == NULL || value != scratch->values[child] || Py_TYPE(value) != item->type) return 0;
            if (run_checks(plan, item->checks, item->volatile_checks, value, scratch) != PASS) return 0;
        }
    }
    if (*fb_dict_version(dict) != version) return 0;
    node->version = word->word = version;
    scratch->fresh[i] = 1;
    return 1;
}

/* Whether the lane's root and words are as they were. A word lives in an object that the words before it prove alive. */
static int lane_holds(Plan *plan, Lane *lane, const PyObject *value, const FbFrame *frame, Scratch *scratch) {
    LaneWord *word = lane->words, *end = word + lane->word_count;
    if (lane->value != value) return 0;
    for (; word < end; word++) {
        if (*word->place == word->word) continue;
        int32_t node = lane->versions[word - lane->words];
        if (node < 0 || !recheck_dict(plan, node, word, frame, scratch)) return 0;
    }
    return 1;
}

static int finish_lane(Plan *plan, const Lane *lane, const FbFrame *frame, Scratch *scratch) {
    for (int32_t i = 0; i < lane->rest_count; i++) {
        const LaneRest *rest = &lane->rests[i];
        int status = rest->from < 0 ? walk(plan, rest->node, rest->end, frame, scratch)
                                    : run_checks(plan, rest->from, rest->end, scratch->values[rest->node], scratch);
        if (status != PASS) return status;
    }
    return PASS;
}

static int check_root(Plan *plan, Lane *lane, const FbFrame *frame, Scratch *scratch) {
    const Node *root = &plan->nodes[lane->root];
    if (!scratch->nested && lane->value != NULL) {
        PyObject *value = fb_borrowed_value(root, NULL, frame);
        if (lane_holds(plan, lane, value, frame, scratch)) {
            lane->penalty = 0;
            return finish_lane(plan, lane, frame, scratch);
        }
        lane->value = NULL; /* the walk overwrites what the lane relies on */
        lane->penalty = lane->penalty < 64 ? 2 * lane->penalty + 1 : 64;
        lane->wait = lane->penalty;
    }
    return walk(plan, lane->root, root->end, frame, scratch);
}

static int check_groups(Plan *plan, const Scratch *scratch) {
    for (int32_t i = 0; i < plan->group_count; i++) {
        if (!fb_group_holds(&plan->groups[i], scratch->values)) {
            plan->failed = plan->check_count + i;
            return FAIL;
        }
    }
    return PASS;
}

static int check_nodes(Plan *plan, const FbFrame *frame, Scratch *scratch) {
    scratch->careful = plan->careful;
    scratch->used = scratch->changed_count = 0;
    if (plan->careful) memset(scratch->values, 0, sizeof(PyObject *) * (size_t)plan->node_count);
    for (int32_t i = 0; i < plan->lane_count; i++) {
        int status = check_root(plan, &plan->lanes[i], frame, scratch);
        if (status != PASS) return status;
    }
    return check_groups(plan, scratch);
}

/* The facts hold for these dicts as they are now. */
static void commit(Plan *plan, const Scratch *scratch) {
    for (int32_t i = 0; i < scratch->changed_count; i++) {
        Node *node = &plan->nodes[scratch->changed[i]];
        node->dict = scratch->values[scratch->changed[i]];
        node->version = node->candidate;
    }
    if (plan->careful) return; /* what lanes rely on might be gone after code of the user's has run */
    for (int32_t i = 0; i < plan->lane_count; i++) {
        Lane *lane = &plan->lanes[i];
        if (lane->value != NULL) continue;
        if (lane->wait > 0) lane->wait--;
        else fb_lane_build(plan, lane);
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

/* RESTART comes once at most: then the plan is careful, and its lanes are never used again. */
static int check_to_end(Plan *plan, const FbFrame *frame, Scratch *scratch) {
    int status = check_once(plan, frame, scratch);
    if (status == RESTART) {
        release(plan, scratch);
        for (int32_t i = 0; i < plan->lane_count; i++) plan->lanes[i].value = NULL;
        status = check_once(plan, frame, scratch);
    }
    if (scratch->careful || plan->makes_objects) release(plan, scratch);
    return status == PASS && !plan->dead;
}

static int check_nested(Plan *plan, const FbFrame *frame) {
    Scratch scratch = {.nested = 1};
    int holds = 0;
    scratch.values = PyMem_Calloc((size_t)plan->node_count + 1, sizeof *scratch.values);
    scratch.fresh = PyMem_Calloc((size_t)plan->node_count + 1, 1);
    if (scratch.values != NULL && scratch.fresh != NULL) holds = check_to_end(plan, frame, &scratch);
    PyMem_Free(scratch.values);
    PyMem_Free(scratch.fresh);
    return holds;
}

int fb_plan_check(PyObject *self, const FbFrame *frame) {
    Plan *plan = (Plan *)self;
    if (plan->dead) return 0;
    Py_INCREF(plan);
    int holds;
    if (plan->busy) {
        holds = check_nested(plan, frame);
    } else {
        plan->busy = 1;
        holds = check_to_end(plan, frame, &plan->scratch);
        plan->busy = 0;
    }
    Py_DECREF(plan);
    return holds;
}
