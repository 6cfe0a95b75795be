/* Lanes: the facts below one root as words of memory.
 *
 * After a plan has passed, most of what it looked at is decided by words at known places: the version of a dict, the
 * class of an object, where its dict is, the length of a list, the sizes of a tensor. While all of them are as they
 * were, walking the nodes would give what it gave. What words can't decide is left as a list of checks and walks.
 *
 * A word may be read only if its place is still the object that it was. The words come in the order of the tree, and
 * each place is proved by what comes before: the root is the same object, an item of a dict or tuple that is
 * unchanged is held by it (pinned), and any other object is held by the place that has just been compared, though it
 * may be a new one at an old address, so that its class is compared first and nothing else about it is assumed.
 */
#include "plan.h"

#include <stddef.h>

enum { LOOSE = 0, HELD = 1, PINNED = 2 }; /* not in the lane; in it, identity open; in it, the very same object */

static int make_room(Lane *lane) {
    int32_t space = lane->word_space ? 2 * lane->word_space : 16;
    LaneWord *words = PyMem_Realloc(lane->words, sizeof *words * (size_t)space);
    if (words == NULL) return 0;
    lane->words = words;
    int32_t *versions = PyMem_Realloc(lane->versions, sizeof *versions * (size_t)space);
    if (versions == NULL) return 0;
    lane->versions = versions;
    lane->word_space = space;
    return 1;
}

static int add_word(Lane *lane, const void *place, uint64_t word) {
    if (lane->word_count == lane->word_space && !make_room(lane)) return 0;
    lane->versions[lane->word_count] = -1;
    lane->words[lane->word_count++] = (LaneWord){place, word};
    return 1;
}

static int add_rest(Lane *lane, int32_t node, int32_t from, int32_t end) {
    if (lane->rest_count == lane->rest_space) {
        int32_t space = lane->rest_space ? 2 * lane->rest_space : 4;
        LaneRest *rests = PyMem_Realloc(lane->rests, sizeof *rests * (size_t)space);
        if (rests == NULL) return 0;
        lane->rests = rests;
        lane->rest_space = space;
    }
    lane->rests[lane->rest_count++] = (LaneRest){node, from, end};
    return 1;
}

/* A pointer that is stored at a place; one is enough of what many checks of a class ask for. */
static int add_pointer(Lane *lane, void *place) {
    if (lane->word_count > 0 && lane->words[lane->word_count - 1].place == place) return 1;
    return add_word(lane, place, *(FbWord *)place);
}

/* The version of a class, which a change of the class or of a base voids; 0 when it has none, -1 when memory is short. */
static int add_class_version(Lane *lane, PyObject *cls) {
    PyTypeObject *type = (PyTypeObject *)cls;
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) || type->tp_version_tag == 0) return 0;
    return add_pointer(lane, &type->tp_version_tag) ? 1 : -1;
}

static int has_identity_check(const Plan *plan, const Node *node) {
    for (int32_t i = node->checks; i < node->checks_end; i++) {
        if (plan->checks[i].kind == CHECK_IS) return 1;
    }
    return 0;
}

/* How sure the lane is of the value of node i, whose words it adds; -1 when memory is short. */
static int add_place(const Plan *plan, Lane *lane, int32_t i) {
    const Node *node = &plan->nodes[i];
    PyObject *const *values = plan->scratch.values;
    if (i == lane->root) return node->op == OP_CONST ? PINNED : HELD;
    PyObject *parent = values[node->parent];
    int parent_state = plan->pinned[node->parent];
    if (parent_state == LOOSE) return LOOSE;
    switch (node->op) {
    case OP_DICT_ITEM: return plan->nodes[node->parent].versioned ? PINNED : LOOSE;
    case OP_SEQUENCE_ITEM: return parent_state == PINNED && PyTuple_Check(parent) ? PINNED : LOOSE;
    case OP_INSTANCE_DICT: {
        PyObject **place = _PyObject_GetDictPtr(parent);
        if (place == NULL || *place != values[i]) return LOOSE;
        return add_pointer(lane, place) ? HELD : -1;
    }
    case OP_CONTENTS: return add_pointer(lane, &((PyCellObject *)parent)->ob_ref) ? HELD : -1;
    case OP_TYPE: return add_pointer(lane, &parent->ob_type) ? HELD : -1;
    case OP_FUNCTION_PART: return add_pointer(lane, (char *)parent + node->index) ? HELD : -1;
    case OP_CLASS_ITEM: {
        int status = add_class_version(lane, parent);
        return status < 0 ? -1 : status ? PINNED : LOOSE;
    }
    default: return LOOSE;
    }
}

static int add_length(Lane *lane, PyObject *value, Py_ssize_t length) {
    if (PyDict_Check(value)) return add_word(lane, &((PyDictObject *)value)->ma_used, (uint64_t)length) ? 1 : -1;
    if (PyList_Check(value) || PyTuple_Check(value)) return add_word(lane, &((PyVarObject *)value)->ob_size, (uint64_t)length) ? 1 : -1;
    return 0;
}

/* Adds the words that decide a check; 0 when words can't, -1 when memory is short. */
static int add_check(Lane *lane, const Check *check, PyObject *value) {
    switch (check->kind) {
    case CHECK_TYPE: return add_pointer(lane, &value->ob_type) ? 1 : -1;
    case CHECK_IS:
    case CHECK_IS_NOT:
    case CHECK_PRESENT: return 1; /* the address is compared already */
    case CHECK_LENGTH: return add_length(lane, value, check->number);
    case CHECK_LACKS_ENTRY: return add_class_version(lane, value);
    case CHECK_CODE: return add_pointer(lane, &((PyFunctionObject *)value)->func_code) ? 1 : -1;
    case CHECK_REQUIRES_GRAD:
    case CHECK_TENSOR: {
        LaneWord words[MOST_TENSOR_WORDS];
        int count = fb_tensor_words(check, value, words);
        for (int i = 0; i < count; i++) {
            if (!add_word(lane, words[i].place, words[i].word)) return -1;
        }
        return count > 0;
    }
    default: return 0;
    }
}

/* Adds node i; the node to go on with, -1 when memory is short. */
static int32_t add_node(Plan *plan, Lane *lane, int32_t i) {
    const Node *node = &plan->nodes[i];
    PyObject *value = plan->scratch.values[i];
    int state = add_place(plan, lane, i);
    if (state < 0) return -1;
    plan->pinned[i] = (char)state;
    if (state == LOOSE) return add_rest(lane, i, -1, node->end) ? node->end : -1;
    if (state == HELD && has_identity_check(plan, node)) plan->pinned[i] = (char)(state = PINNED);
    if (state == HELD && !add_pointer(lane, &value->ob_type)) return -1;
    plan->nodes[i].type = Py_TYPE(value);
    int32_t check = node->checks;
    if (node->versioned) {
        if (node->dict != value || node->version == 0) return add_rest(lane, i, -1, node->end) ? node->end : -1;
        if (!add_word(lane, fb_dict_version(value), node->version)) return -1;
        lane->versions[lane->word_count - 1] = i;
        check = node->volatile_checks;
    } else if (state == PINNED) {
        check = node->volatile_checks;
    }
    for (; check < node->checks_end; check++) {
        int status = add_check(lane, &plan->checks[check], value);
        if (status < 0 || (status == 0 && !add_rest(lane, i, check, check + 1))) return -1;
    }
    return node->versioned ? node->volatile_begin : i + 1;
}

/* Makes the lane from the values of a check that has just passed. Without children or identity there is nothing to win. */
void fb_lane_build(Plan *plan, Lane *lane) {
    const Node *root = &plan->nodes[lane->root];
    lane->word_count = lane->rest_count = 0;
    lane->wait = 64;
    if (root->end == lane->root + 1 && !has_identity_check(plan, root)) return;
    for (int32_t i = lane->root; i < root->end;) {
        i = add_node(plan, lane, i);
        if (i < 0) return;
    }
    lane->value = plan->scratch.values[lane->root];
}

void fb_lane_free(Lane *lane) {
    PyMem_Free(lane->words);
    PyMem_Free(lane->versions);
    PyMem_Free(lane->rests);
}
