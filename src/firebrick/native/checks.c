/* What guards ask of one value. */
#include "plan.h"

#include <string.h>

/* ---- constants -------------------------------------------------------------------- */

static int same_number(PyObject *a, PyObject *b, Py_ssize_t numbers) {
    double left[2] = {0, 0}, right[2] = {0, 0};
    if (numbers == 1) {
        left[0] = PyFloat_AS_DOUBLE(a);
        right[0] = PyFloat_AS_DOUBLE(b);
    } else {
        Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
        memcpy(left, &x, sizeof left);
        memcpy(right, &y, sizeof right);
    }
    return memcmp(left, right, sizeof left) == 0; /* by bits: NaN equals itself, 0.0 differs from -0.0 */
}

static int equal_python(PyObject *a, PyObject *b) {
    int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0) PyErr_Clear();
    return equal == 1;
}

static int same_constant(PyObject *a, PyObject *b);

static int same_tuple(PyObject *a, PyObject *b) {
    Py_ssize_t size = PyTuple_GET_SIZE(a);
    if (size != PyTuple_GET_SIZE(b)) return 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        if (!same_constant(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return 0;
    }
    return 1;
}

/* Sets with the same members, types included: {1} is not {1.0}. */
static int same_set(PyObject *a, PyObject *b) {
    if (PySet_GET_SIZE(a) != PySet_GET_SIZE(b) || !equal_python(a, b)) return 0;
    PyObject *left = PySequence_Tuple(a), *right = PySequence_Tuple(b);
    int same = left != NULL && right != NULL;
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(left); i++) {
        int found = 0;
        for (Py_ssize_t j = 0; !found && j < PyTuple_GET_SIZE(right); j++) found = same_constant(PyTuple_GET_ITEM(left, i), PyTuple_GET_ITEM(right, j));
        same = found;
    }
    Py_XDECREF(left);
    Py_XDECREF(right);
    PyErr_Clear();
    return same;
}

static int same_slice(PyObject *a, PyObject *b) {
    PySliceObject *x = (PySliceObject *)a, *y = (PySliceObject *)b;
    return same_constant(x->start, y->start) && same_constant(x->stop, y->stop) && same_constant(x->step, y->step);
}

static int same_range(PyObject *a, PyObject *b) {
    static const char *const parts[] = {"start", "stop", "step"};
    int same = 1;
    for (int i = 0; i < 3 && same; i++) {
        PyObject *x = PyObject_GetAttrString(a, parts[i]), *y = PyObject_GetAttrString(b, parts[i]);
        same = x != NULL && y != NULL && equal_python(x, y);
        Py_XDECREF(x);
        Py_XDECREF(y);
    }
    PyErr_Clear();
    return same;
}

/* Whether one can stand for the other in a program: same exact type, same value. Runs no code of the user's. */
static int same_constant(PyObject *a, PyObject *b) {
    PyTypeObject *type = Py_TYPE(a);
    if (a == b) return 1;
    if (type != Py_TYPE(b)) return 0;
    if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type) return equal_python(a, b);
    if (type == &PyFloat_Type) return same_number(a, b, 1);
    if (type == &PyComplex_Type) return same_number(a, b, 2);
    if (PyTuple_Check(a)) return same_tuple(a, b);
    if (type == &PyFrozenSet_Type || type == &PySet_Type) return same_set(a, b);
    if (type == &PySlice_Type) return same_slice(a, b);
    if (type == &PyRange_Type) return same_range(a, b);
    return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0 && equal_python(a, b);
}

/* ---- containers --------------------------------------------------------------------- */

static Py_ssize_t length(PyObject *value) {
    if (PyTuple_Check(value) || PyList_Check(value)) return Py_SIZE(value);
    if (PyDict_Check(value)) return PyDict_GET_SIZE(value);
    if (PyAnySet_Check(value)) return PySet_GET_SIZE(value);
    Py_ssize_t size = PyObject_Size(value);
    if (size < 0) PyErr_Clear();
    return size;
}

/* The keys of a dict in order. Subclasses may keep an order of their own, which iteration tells. */
static int same_keys(PyObject *dict, PyObject *keys) {
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(keys)) return 0;
    Py_ssize_t place = 0, i = 0;
    PyObject *key;
    if (PyDict_CheckExact(dict)) {
        while (PyDict_Next(dict, &place, &key, NULL)) {
            if (i >= PyTuple_GET_SIZE(keys) || !same_constant(key, PyTuple_GET_ITEM(keys, i++))) return 0;
        }
        return 1;
    }
    PyObject *found = PySequence_Tuple(dict);
    int same = found != NULL && same_tuple(found, keys);
    Py_XDECREF(found);
    PyErr_Clear();
    return same;
}

static int has_key(PyObject *container, PyObject *key) {
    int found = PyDict_Check(container) ? PyDict_Contains(container, key) : PyAnySet_Check(container) ? PySet_Contains(container, key) : -1;
    if (found < 0) PyErr_Clear();
    return found;
}

static int has_attribute(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL) PyErr_Clear();
    Py_XDECREF(value);
    return value != NULL;
}

int fb_check_other(const Check *check, PyObject *value) {
    switch (check->kind) {
    case CHECK_EQUALS: return same_constant(value, check->object);
    case CHECK_LENGTH: return length(value) == check->number;
    case CHECK_KEYS: return same_keys(value, check->object);
    case CHECK_HAS_KEY: return has_key(value, check->object) == 1;
    case CHECK_LACKS_KEY: return has_key(value, check->object) == 0;
    case CHECK_HAS_ATTRIBUTE: return has_attribute(value, check->object);
    case CHECK_LACKS_ATTRIBUTE: return !has_attribute(value, check->object);
    case CHECK_CODE: return PyFunction_Check(value) && ((PyFunctionObject *)value)->func_code == check->object;
    case CHECK_REQUIRES_GRAD: return PyObject_TypeCheck(value, fb_tensor_type) && fb_requires_grad(value) == check->number;
    case CHECK_PRESENT: return 1;
    case CHECK_LACKS_ENTRY: return PyType_Check(value) && _PyType_Lookup((PyTypeObject *)value, check->object) == NULL;
    default: return 0;
    }
}

/* ---- tensors ---------------------------------------------------------------------- */

enum { ANY_SIZE = -1, INLINE_DIMS = 5, MOST_DESCRIPTION_WORDS = 4 };

/* What is guarded of a tensor. A size or stride of -1 may be anything. */
struct FbTensorMeta {
    PyTypeObject *type;
    int32_t dtype, device_type, device_index, layout;
    int requires_grad;
    uint64_t keys;
    int64_t dim;
    int described; /* `description` was seen on a tensor that passed the full check */
    uint64_t description[MOST_DESCRIPTION_WORDS];
    int64_t extent[]; /* sizes, then strides */
};

/* Places in a TensorImpl, in words; valid where description_words is not 0. Up to five sizes and strides are kept in
 * line. The words between the number of elements and the dispatch keys, both among them, hold dtype, device and flags. */
static Py_ssize_t dim_place, sizes_place, strides_place, description_place, description_words;

/* dtype, device type, device index, layout, dim; 0 when a getter failed. */
static int tensor_facts(FbHandle handle, int32_t *facts, int64_t *dim) {
    return fb_torch.get_dtype(handle, &facts[0]) == 0 && fb_torch.get_device_type(handle, &facts[1]) == 0 &&
           fb_torch.get_device_index(handle, &facts[2]) == 0 && fb_torch.get_layout(handle, &facts[3]) == 0 && fb_torch.get_dim(handle, dim) == 0;
}

static int same_extent(const int64_t *wanted, const int64_t *found, int64_t dim) {
    for (int64_t i = 0; i < dim; i++) {
        if (wanted[i] != ANY_SIZE && wanted[i] != found[i]) return 0;
    }
    return 1;
}

/* The check that needs no knowledge of TensorImpl. */
static int check_fully(const FbTensorMeta *meta, PyObject *value) {
    FbHandle handle = FB_HANDLE(value);
    int32_t facts[4];
    int64_t dim, *sizes, *strides;
    if (fb_dispatch_keys(value) != meta->keys || !tensor_facts(handle, facts, &dim)) return 0;
    if (dim != meta->dim || facts[0] != meta->dtype || facts[1] != meta->device_type || facts[2] != meta->device_index || facts[3] != meta->layout) {
        return 0;
    }
    if (fb_torch.get_sizes(handle, &sizes) != 0 || !same_extent(meta->extent, sizes, dim)) return 0;
    if (meta->layout == 0 && (fb_torch.get_strides(handle, &strides) != 0 || !same_extent(meta->extent + dim, strides, dim))) return 0;
    return 1;
}

/* Whether the words of the TensorImpl are those of a tensor that passed; 0 says nothing. */
static int check_words(const FbTensorMeta *meta, const int64_t *words) {
    for (Py_ssize_t i = 0; i < description_words; i++) {
        if ((uint64_t)words[description_place + i] != meta->description[i]) return 0;
    }
    return words[dim_place] == meta->dim && same_extent(meta->extent, words + sizes_place, meta->dim) &&
           same_extent(meta->extent + meta->dim, words + strides_place, meta->dim);
}

int fb_check_tensor(Check *check, PyObject *value) {
    FbTensorMeta *meta = check->tensor;
    if (Py_TYPE(value) != meta->type) return 0;
    const int64_t *words = FB_IMPL(value);
    if (words == NULL) return 0;
    if (meta->described && check_words(meta, words)) return fb_requires_grad(value) == meta->requires_grad;
    if (!check_fully(meta, value)) return 0;
    if (description_words > 0 && meta->dim <= INLINE_DIMS && meta->layout == 0) {
        memcpy(meta->description, words + description_place, sizeof(uint64_t) * (size_t)description_words);
        meta->described = 1;
    }
    return fb_requires_grad(value) == meta->requires_grad;
}

#define ADD(address) (words[count] = (LaneWord){(const FbWord *)(address), *(const FbWord *)(address)}, count++)

/* The words that decide `requires_grad`. */
static int autograd_words(PyObject *value, LaneWord *words) {
    const void *autograd[2];
    int count = 0;
    if (!fb_autograd_words(value, autograd)) return 0;
    ADD(FB_HANDLE(value));
    ADD((const char *)FB_IMPL(value) + fb_autograd_offset);
    for (int i = 0; i < 2; i++) {
        if (autograd[i] != NULL) ADD(autograd[i]);
    }
    return count;
}

/* The words that decide the check of a tensor that has just passed it, in an order that proves each place. */
int fb_tensor_words(const Check *check, PyObject *value, LaneWord *words) {
    const FbTensorMeta *meta = check->tensor;
    const FbWord *impl = FB_IMPL(value);
    int count = autograd_words(value, words);
    if (check->kind == CHECK_REQUIRES_GRAD || count == 0) return count;
    if (description_words == 0 || !meta->described) return 0;
    ADD(&value->ob_type);
    ADD(impl + dim_place);
    for (Py_ssize_t i = 0; i < description_words; i++) ADD(impl + description_place + i);
    for (int64_t i = 0; i < meta->dim; i++) {
        if (meta->extent[i] != ANY_SIZE) ADD(impl + sizes_place + i);
        if (meta->extent[meta->dim + i] != ANY_SIZE) ADD(impl + strides_place + i);
    }
    return count;
}

#undef ADD

/* Finds the places of sizes and strides, on a tensor whose sizes and strides no other words are likely to hold. */
static int find_places(PyObject *sample, int64_t dim, int64_t elements) {
    const int64_t *words = FB_IMPL(sample);
    int64_t *sizes, *strides;
    if (fb_torch.get_sizes(FB_HANDLE(sample), &sizes) != 0 || fb_torch.get_strides(FB_HANDLE(sample), &strides) != 0) return 0;
    dim_place = sizes - words - 1;
    sizes_place = sizes - words;
    strides_place = strides - words;
    if (dim_place <= 0 || sizes_place > 64 || strides_place != sizes_place + INLINE_DIMS || words[dim_place] != dim) return 0;
    Py_ssize_t elements_place = strides_place + INLINE_DIMS + 1, keys_place = fb_keys_offset / 8; /* after the storage offset */
    description_place = elements_place + 1;
    Py_ssize_t count = keys_place + 1 - description_place;
    if (fb_keys_offset < 0 || count < 2 || count > MOST_DESCRIPTION_WORDS || words[elements_place] != elements) return 0;
    return (int)count;
}

static PyObject *use_tensor_words(PyObject *self, PyObject *args) {
    PyObject *sample;
    long long dim, elements;
    if (!PyArg_ParseTuple(args, "O!LL:use_tensor_words", fb_tensor_type, &sample, &dim, &elements)) return NULL;
    description_words = find_places(sample, dim, elements);
    return PyBool_FromLong(description_words > 0);
}

/* The words that stand for dtype, device and flags, to test that they tell tensors apart. */
static PyObject *tensor_description(PyObject *self, PyObject *tensor) {
    if (!PyObject_TypeCheck(tensor, fb_tensor_type)) return PyErr_Format(PyExc_TypeError, "tensor_description needs a torch.Tensor");
    return PyBytes_FromStringAndSize((const char *)FB_IMPL(tensor) + 8 * description_place, 8 * description_words);
}

static PyObject *forget_tensor_words(PyObject *self, PyObject *none) {
    description_words = 0;
    Py_RETURN_NONE;
}

static PyObject *extent_tuple(const int64_t *numbers, int64_t dim) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)dim);
    for (int64_t i = 0; tuple != NULL && i < dim; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, number);
    }
    return tuple;
}

/* (dtype, device type, device index, layout, requires_grad, dispatch keys, sizes, strides) as CHECK_TENSOR takes them after the type. */
static PyObject *tensor_meta(PyObject *self, PyObject *tensor) {
    int32_t facts[4];
    int64_t dim, *sizes = NULL, *strides = NULL;
    if (!PyObject_TypeCheck(tensor, fb_tensor_type)) return PyErr_Format(PyExc_TypeError, "tensor_meta needs a torch.Tensor");
    FbHandle handle = FB_HANDLE(tensor);
    if (!tensor_facts(handle, facts, &dim) || fb_torch.get_sizes(handle, &sizes) != 0) return PyErr_Format(PyExc_ValueError, "the tensor has no plain sizes");
    if (facts[3] == 0 && fb_torch.get_strides(handle, &strides) != 0) strides = NULL;
    PyObject *size_tuple = extent_tuple(sizes, dim), *stride_tuple = extent_tuple(strides == NULL ? sizes : strides, strides == NULL ? 0 : dim);
    if (size_tuple == NULL || stride_tuple == NULL) {
        Py_XDECREF(size_tuple);
        Py_XDECREF(stride_tuple);
        return NULL;
    }
    return Py_BuildValue("(iiiiiKNN)", facts[0], facts[1], facts[2], facts[3], fb_requires_grad(tensor),
                         (unsigned long long)fb_dispatch_keys(tensor), size_tuple, stride_tuple);
}

static int fill_extent(int64_t *place, PyObject *numbers, Py_ssize_t dim) {
    for (Py_ssize_t i = 0; i < dim; i++) place[i] = ANY_SIZE;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers) && i < dim; i++) {
        PyObject *number = PyTuple_GET_ITEM(numbers, i);
        if (number != Py_None) place[i] = PyLong_AsLongLong(number);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static FbTensorMeta *make_meta(PyObject *payload) {
    PyObject *type, *sizes, *strides;
    FbTensorMeta read = {0};
    unsigned long long keys;
    if (!PyArg_ParseTuple(payload, "O!iiiiiKO!O!", &PyType_Type, &type, &read.dtype, &read.device_type, &read.device_index, &read.layout,
                          &read.requires_grad, &keys, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)type, fb_tensor_type)) return (void *)PyErr_Format(PyExc_TypeError, "a tensor guard needs a tensor type");
    Py_ssize_t dim = PyTuple_GET_SIZE(sizes);
    FbTensorMeta *meta = PyMem_Malloc(sizeof *meta + 2 * (size_t)dim * sizeof(int64_t));
    if (meta == NULL) return (FbTensorMeta *)PyErr_NoMemory();
    *meta = read;
    meta->type = (PyTypeObject *)Py_NewRef(type);
    meta->keys = keys;
    meta->dim = dim;
    if (fill_extent(meta->extent, sizes, dim) < 0 || fill_extent(meta->extent + dim, strides, dim) < 0) {
        Py_DECREF(type);
        PyMem_Free(meta);
        return NULL;
    }
    return meta;
}

/* ---- making checks ----------------------------------------------------------------- */

int fb_check_make(Check *check, PyObject *kind_and_payload, PyObject *died) {
    PyObject *payload;
    int kind;
    if (!PyArg_ParseTuple(kind_and_payload, "iO", &kind, &payload)) return -1;
    *check = (Check){.kind = (uint8_t)kind};
    switch (kind) {
    case CHECK_LENGTH:
    case CHECK_REQUIRES_GRAD:
    case CHECK_SAME: check->number = PyLong_AsSsize_t(payload); return PyErr_Occurred() ? -1 : 0;
    case CHECK_TENSOR: check->tensor = make_meta(payload); return check->tensor == NULL ? -1 : 0;
    case CHECK_TYPE:
    case CHECK_IS:
    case CHECK_CODE:
        if (PyType_SUPPORTS_WEAKREFS(Py_TYPE(payload)) && !(PyType_Check(payload) && !PyType_HasFeature((PyTypeObject *)payload, Py_TPFLAGS_HEAPTYPE))) {
            check->object = payload;
            check->reference = PyWeakref_NewRef(payload, died);
            return check->reference == NULL ? -1 : 0;
        }
        break;
    case CHECK_KEYS:
        if (!PyTuple_Check(payload)) return FB_RAISE(PyExc_TypeError, "a guard on keys needs a tuple");
        break;
    default:
        if (kind < 0 || kind >= CHECK_COUNT) return FB_RAISE(PyExc_ValueError, "no check has number %d", kind);
    }
    check->object = Py_NewRef(payload);
    return 0;
}

void fb_check_clear(Check *check) {
    if (check->reference == NULL) Py_XDECREF(check->object);
    Py_XDECREF(check->reference);
    if (check->tensor != NULL) {
        Py_DECREF(check->tensor->type);
        PyMem_Free(check->tensor);
    }
    *check = (Check){0};
}

static PyObject *constants_equal(PyObject *self, PyObject *args) {
    PyObject *a, *b;
    if (!PyArg_ParseTuple(args, "OO:same_constant", &a, &b)) return NULL;
    return PyBool_FromLong(same_constant(a, b));
}

static PyMethodDef methods[] = {
    {"tensor_meta", tensor_meta, METH_O, "What a guard on the tensor holds, after its type."},
    {"tensor_span", fb_tensor_span, METH_O, "Addresses: of the first element, behind the last, and behind the storage."},
    {"use_tensor_words", use_tensor_words, METH_VARARGS,
     "use_tensor_words(tensor, dim, numel): find where TensorImpl keeps what guards compare; whether it was found."},
    {"tensor_description", tensor_description, METH_O, "The words of TensorImpl that hold dtype, device, flags and dispatch keys."},
    {"forget_tensor_words", forget_tensor_words, METH_NOARGS, "Compare by torch's C ABI alone."},
    {"same_constant", constants_equal, METH_VARARGS, "Whether two constants have the same exact type and value (NaN equals itself, 0.0 is not -0.0)."},
    {NULL, NULL, 0, NULL},
};

int fb_checks_init(PyObject *module) { return PyModule_AddFunctions(module, methods); }
