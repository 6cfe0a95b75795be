/* Shared by the files of guard plans: guards.c (the tree), checks.c (checks of one value), state.c (torch's global state). */
#ifndef FIREBRICK_PLAN_H
#define FIREBRICK_PLAN_H

#include "native.h"

/* How a node gets its value; the numbers are exported to capture/guards.py by name. */
#define FB_OPS(X)                                                                                                  \
    X(LOCAL) X(FREE) X(GLOBALS) X(BUILTINS) X(CONST) X(TYPE) X(INSTANCE_DICT) X(DICT_ITEM) X(SEQUENCE_ITEM)        \
    X(CONTENTS) X(CLASS_ITEM) X(DICT_KEY) X(FUNCTION_PART) X(METHOD_SELF) X(METHOD_FUNCTION) X(ATTRIBUTE) X(ITEM)

/* What must be true of a value. */
#define FB_CHECKS(X)                                                                                               \
    X(TYPE) X(IS) X(IS_NOT) X(EQUALS) X(LENGTH) X(KEYS) X(HAS_KEY) X(LACKS_KEY) X(HAS_ATTRIBUTE) X(LACKS_ATTRIBUTE) \
    X(TENSOR) X(CODE) X(SAME) X(PRESENT)

/* Torch's global state, each a number. */
#define FB_STATES(X) X(GRAD_MODE) X(INFERENCE_MODE) X(AUTOCAST) X(DETERMINISTIC) X(DEFAULT_DTYPE) X(TORCH_FUNCTION)

#define FB_OP(name) OP_##name,
enum Op { FB_OPS(FB_OP) OP_COUNT, OP_MAKES_OBJECT = OP_ATTRIBUTE };
#undef FB_OP
#define FB_CHECK(name) CHECK_##name,
enum CheckKind { FB_CHECKS(FB_CHECK) CHECK_COUNT };
#undef FB_CHECK
#define FB_STATE(name) STATE_##name,
enum StateKind { FB_STATES(FB_STATE) STATE_COUNT };
#undef FB_STATE

typedef struct FbTensorMeta FbTensorMeta;

typedef struct {
    uint8_t kind;
    Py_ssize_t number;
    PyObject *object; /* borrowed where `reference` is set */
    PyObject *reference; /* weak reference to `object`; the plan dies with it */
    FbTensorMeta *tensor;
} Check;

typedef struct {
    int kind;
    int64_t value;
} FbState;

/* Fills in a check from (kind, payload); 0 or -1 with an exception. Weak references call `died`. */
int fb_check_make(Check *check, PyObject *kind_and_payload, PyObject *died);
void fb_check_clear(Check *check);
int fb_check_tensor(Check *check, PyObject *value);
int fb_check_other(const Check *check, PyObject *value);

int64_t fb_state_read(int kind);
int fb_state_init(PyObject *module);
int fb_checks_init(PyObject *module);

#endif
