/* Shared by the files of guard plans: walk.c (evaluates the tree), lane.c (its short cut), versions.c (of dicts),
 * checks.c (checks of one value), groups.c (of several), state.c (torch's global state), guards.c (the Python type). */
#ifndef FIREBRICK_PLAN_H
#define FIREBRICK_PLAN_H

#include "native.h"

/* How a node gets its value; the numbers are exported to capture/guards/guard_plan.py by name. */
#define FB_OPS(X)                                                                                                  \
    X(LOCAL) X(FREE) X(GLOBALS) X(BUILTINS) X(CONST) X(TYPE) X(INSTANCE_DICT) X(DICT_ITEM) X(SEQUENCE_ITEM)        \
    X(CONTENTS) X(CLASS_ITEM) X(DICT_KEY) X(FUNCTION_PART) X(METHOD_SELF) X(METHOD_FUNCTION) X(ATTRIBUTE) X(ITEM) \
    X(CALL)

/* What must be true of a value. */
#define FB_CHECKS(X)                                                                                               \
    X(TYPE) X(IS) X(IS_NOT) X(EQUALS) X(LENGTH) X(KEYS) X(HAS_KEY) X(LACKS_KEY) X(HAS_ATTRIBUTE) X(LACKS_ATTRIBUTE) \
    X(TENSOR) X(REQUIRES_GRAD) X(CODE) X(SAME) X(PRESENT) X(LACKS_ENTRY)

/* What must be true of several values. */
#define FB_GROUPS(X) X(DISTINCT) X(NO_OVERLAP) X(SHAPE)

/* Instructions of a SHAPE group's program, a stack machine over numbers. */
#define FB_SHAPE_OPS(X)                                                                                            \
    X(CONST) X(SIZE) X(STRIDE) X(OFFSET) X(INT) X(ADD) X(SUB) X(MUL) X(FLOORDIV) X(MOD) X(MIN) X(MAX) X(EQ) X(NE)  \
    X(LT) X(LE) X(AND) X(OR) X(NOT)

/* Torch's global state, each a number. */
#define FB_STATES(X) X(GRAD_MODE) X(INFERENCE_MODE) X(AUTOCAST) X(DETERMINISTIC) X(DEFAULT_DTYPE) X(TORCH_FUNCTION) \
    X(TRANSFORMS) X(THREADS) X(MATMUL_PRECISION) X(ABSTRACT_CLASSES) X(DEFAULT_DEVICE)

#define FB_OP(name) OP_##name,
enum Op { FB_OPS(FB_OP) OP_COUNT, OP_LAST_ROOT = OP_CONST, OP_MAKES_OBJECT = OP_ATTRIBUTE };
#undef FB_OP
#define FB_CHECK(name) CHECK_##name,
enum CheckKind { FB_CHECKS(FB_CHECK) CHECK_COUNT };
#undef FB_CHECK
#define FB_GROUP(name) GROUP_##name,
enum GroupKind { FB_GROUPS(FB_GROUP) GROUP_COUNT };
#undef FB_GROUP
#define FB_SHAPE(name) SHAPE_##name,
enum ShapeOp { FB_SHAPE_OPS(FB_SHAPE) SHAPE_COUNT };
#undef FB_SHAPE
#define FB_STATE(name) STATE_##name,
enum StateKind { FB_STATES(FB_STATE) STATE_COUNT };
#undef FB_STATE

typedef struct FbTensorMeta FbTensorMeta;

typedef struct {
    uint8_t kind;
    Py_ssize_t number;
    PyObject *object;    /* borrowed where `reference` is set */
    PyObject *reference; /* weak reference to `object`; the plan dies with it */
    FbTensorMeta *tensor;
} Check;

typedef struct {
    int kind;
    int64_t value;
} FbState;

typedef struct {
    int kind;
    int32_t count;
    int32_t *nodes;
    Py_ssize_t length; /* of the program, in instructions of three numbers */
    int64_t *program;
} Group;

typedef struct {
    uint8_t op;
    uint8_t versioned; /* the value is a dict with items or keys that are guarded: use its version */
    int32_t parent, end, volatile_begin; /* subtree is [i, end); from volatile_begin on it needs a look on every call */
    int32_t checks, volatile_checks, checks_end; /* [checks, volatile_checks) are skipped for an unchanged item or dict */
    Py_ssize_t index;
    PyObject *key;
    /* The last success. */
    PyObject *dict, *cached;
    PyTypeObject *type; /* compared only, where a lane takes the value for granted */
    uint64_t version, candidate;
} Node;

/* A word of an object of any kind, read as it lies in memory. */
typedef uint64_t __attribute__((may_alias)) FbWord;

/* A word of memory that must be as it was at the last success. */
typedef struct {
    const FbWord *place;
    FbWord word;
} LaneWord;

/* What a lane leaves to do: checks [from, end) of a node, or, with from -1, a walk of its subtree. */
typedef struct {
    int32_t node, from, end;
} LaneRest;

/* The short cut for one root and what is below it. */
typedef struct {
    int32_t root;
    PyObject *value; /* of the root; NULL without a lane */
    LaneWord *words;
    int32_t *versions; /* for each word the node whose dict's version it is, or -1 */
    LaneRest *rests;
    int32_t word_count, word_space, rest_count, rest_space;
    int32_t wait, penalty; /* successes to let pass before it is built again */
} Lane;

typedef struct {
    PyObject **values;
    char *fresh; /* the dict at this node is as it was at the last success */
    int careful; /* values are owned */
    int nested;  /* another check of this plan is under way: leave caches and lanes alone */
    int32_t used;
    int32_t *changed; /* versioned nodes whose dict was looked at anew */
    int32_t changed_count;
} Scratch;

typedef struct {
    PyObject_HEAD
    Node *nodes;
    Check *checks;
    FbState *states;
    Group *groups;
    Lane *lanes;
    char *pinned; /* of each node, used while a lane is built */
    int32_t node_count, check_count, state_count, group_count, lane_count;
    Scratch scratch;
    int busy, careful, makes_objects, dead;
    int failed; /* what failed last: the check, check_count + group, or -1 - state */
    void *owner;
    void (*drop)(void *owner);
    PyObject *token; /* leads weak reference callbacks here while the plan lives */
} Plan;

static inline FbWord *fb_dict_version(PyObject *dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return (FbWord *)&((PyDictObject *)dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

/* Makes sure that every change of the dict changes its version; 0 when that can't be had. */
int fb_dict_use_version(PyObject *dict);

/* Fills in a check from (kind, payload); 0 or -1 with an exception. Weak references call `died`. */
int fb_check_make(Check *check, PyObject *kind_and_payload, PyObject *died);
void fb_check_clear(Check *check);
int fb_check_tensor(Check *check, PyObject *value);
int fb_check_other(const Check *check, PyObject *value);
/* Places whose words decide a check on a tensor that has just passed; their number, 0 when words can't. */
enum { MOST_TENSOR_WORDS = 24 };
int fb_tensor_words(const Check *check, PyObject *value, LaneWord *words);

int fb_group_make(Group *group, PyObject *row, int32_t node_count);
void fb_group_clear(Group *group);
int fb_group_holds(const Group *group, PyObject *const *values);

int64_t fb_state_read(int kind);

/* The value of a node that needs no new object, borrowed from the parent's value or the frame; NULL when there is none. */
PyObject *fb_borrowed_value(const Node *node, PyObject *parent, const FbFrame *frame);

/* Where a tensor's elements begin, where they end, and where its storage does. */
PyObject *fb_tensor_span(PyObject *self, PyObject *tensor);
void fb_lane_build(Plan *plan, Lane *lane);
void fb_lane_free(Lane *lane);

int fb_state_init(PyObject *module);
int fb_checks_init(PyObject *module);

#endif
