/* The layout of torch's tensor objects, measured at import, and the functions of torch's C ABI.
 *
 * Nothing of torch is included. Offsets are found by comparing what torch's own Python functions say
 * about sample tensors with the words of those tensors, so that one build serves several versions of torch.
 */
#define _GNU_SOURCE
#include "native.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

Py_ssize_t fb_handle_offset;
PyTypeObject *fb_tensor_type, *fb_parameter_type;
FbTorch fb_torch;

/* Byte offsets inside a TensorImpl; -1 when not found. */
Py_ssize_t fb_keys_offset = -1, fb_autograd_offset = -1;
static Py_ssize_t counter_offset = -1, counter_value_offset = -1;
/* Byte offsets inside an AutogradMeta, all found or all -1. */
static Py_ssize_t flag_offset = -1, view_flag_offset = -1, grad_fn_offset = -1;
static PyGetSetDef *version_getter, *requires_grad_getter;

enum { OBJECT_WORDS = 10, IMPL_WORDS = 48, META_BYTES = 160, COUNTER_WORDS = 6, SAMPLES = 4 };

static uint64_t word_at(const void *base, Py_ssize_t offset) {
    uint64_t word;
    memcpy(&word, (const char *)base + offset, sizeof word);
    return word;
}

/* ---- C ABI -------------------------------------------------------------- */

void *fb_torch_library(void) {
    static void *library;
    if (library == NULL) library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    return library;
}

int fb_find_functions(const FbFunction *table, size_t count, void *into) {
    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(fb_torch_library(), table[i].name);
        if (function == NULL && table[i].needed)
            return FB_RAISE(PyExc_ImportError, "firebrick: this torch has no %s; versions 2.11 to 2.14 are supported", table[i].name);
        memcpy((char *)into + table[i].place, &function, sizeof function);
    }
    return 0;
}

static int find_functions(void) {
    static const FbFunction table[] = {
        {"aoti_torch_get_data_ptr", offsetof(FbTorch, get_data_ptr), 1},
        {"aoti_torch_get_dim", offsetof(FbTorch, get_dim), 1},
        {"aoti_torch_get_sizes", offsetof(FbTorch, get_sizes), 1},
        {"aoti_torch_get_strides", offsetof(FbTorch, get_strides), 1},
        {"aoti_torch_get_dtype", offsetof(FbTorch, get_dtype), 1},
        {"aoti_torch_get_device_type", offsetof(FbTorch, get_device_type), 1},
        {"aoti_torch_get_device_index", offsetof(FbTorch, get_device_index), 1},
        {"aoti_torch_get_layout", offsetof(FbTorch, get_layout), 1},
        {"aoti_torch_get_storage_offset", offsetof(FbTorch, get_storage_offset), 1},
        {"aoti_torch_delete_tensor_object", offsetof(FbTorch, delete_tensor), 1},
        {"aoti_torch_grad_mode_is_enabled", offsetof(FbTorch, grad_mode_is_enabled), 1},
    };
    if (fb_torch_library() != NULL) return fb_find_functions(table, sizeof table / sizeof *table, &fb_torch);
    return FB_RAISE(PyExc_ImportError, "firebrick: libtorch_cpu.so is not loaded; torch must be a usual build for Linux");
}

/* ---- calibration -------------------------------------------------------- */

/* Copies through a pipe, which fails cleanly where a dereference would be fatal. */
static int readable(const void *address, size_t size) {
    int ends[2], ok;
    if (pipe(ends) != 0) return 0;
    ok = write(ends[1], address, size) == (ssize_t)size;
    close(ends[0]);
    close(ends[1]);
    return ok;
}

/* The offset of the word that holds `tensor._cdata` inside the object. */
static int find_handle(PyObject *const *samples) {
    for (Py_ssize_t offset = sizeof(PyObject); offset < OBJECT_WORDS * 8 && fb_handle_offset == 0; offset += 8) {
        int all = 1;
        for (int i = 0; i < SAMPLES && all; i++) {
            PyObject *cdata = PyObject_GetAttrString(samples[i], "_cdata");
            if (cdata == NULL) return -1;
            all = word_at(samples[i], offset) == PyLong_AsUnsignedLongLong(cdata);
            Py_DECREF(cdata);
            if (PyErr_Occurred()) return -1;
        }
        if (all) fb_handle_offset = offset;
    }
    if (fb_handle_offset != 0) return 0;
    return FB_RAISE(PyExc_ImportError, "firebrick: the place of TensorImpl in torch.Tensor was not found; this torch is not supported");
}

/* `torch._C._dispatch_keys(tensor).raw_repr()` */
static int raw_keys(PyObject *torch_c, PyObject *tensor, uint64_t *keys) {
    PyObject *set = PyObject_CallMethod(torch_c, "_dispatch_keys", "O", tensor);
    PyObject *raw = set == NULL ? NULL : PyObject_CallMethod(set, "raw_repr", NULL);
    Py_XDECREF(set);
    if (raw == NULL) return -1;
    *keys = PyLong_AsUnsignedLongLongMask(raw);
    Py_DECREF(raw);
    return PyErr_Occurred() ? -1 : 0;
}

static int find_keys(PyObject *torch_c, PyObject *const *samples) {
    uint64_t keys[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        if (raw_keys(torch_c, samples[i], &keys[i]) < 0) return -1;
    }
    for (Py_ssize_t offset = 8; offset < IMPL_WORDS * 8; offset += 8) {
        int same = 0;
        for (int i = 0; i < SAMPLES; i++) same += word_at(FB_IMPL(samples[i]), offset) == keys[i];
        if (same == SAMPLES) {
            fb_keys_offset = offset;
            return 0;
        }
    }
    return 0;
}

/* autograd_meta is null in plain tensors and set in those that require a gradient; the version counter comes after it. */
static void find_autograd(PyObject *const *samples, const int *needs_grad, const int *versions) {
    for (Py_ssize_t offset = 8; offset < IMPL_WORDS * 8; offset += 8) {
        int fits = 1;
        for (int i = 0; i < SAMPLES && fits; i++) {
            uint64_t word = word_at(FB_IMPL(samples[i]), offset);
            fits = needs_grad[i] ? (word > 4096 && word % 8 == 0 && readable((void *)word, 16)) : word == 0;
        }
        if (fits) {
            fb_autograd_offset = offset;
            break;
        }
    }
    for (Py_ssize_t offset = 8; offset < IMPL_WORDS * 8; offset += 8) {
        for (Py_ssize_t value = 8; value < COUNTER_WORDS * 8; value += 4) {
            int fits = 1;
            for (int i = 0; i < SAMPLES && fits; i++) {
                uint64_t word = word_at(FB_IMPL(samples[i]), offset);
                uint32_t version;
                fits = word > 4096 && word % 8 == 0 && readable((void *)word, COUNTER_WORDS * 8);
                if (fits) {
                    memcpy(&version, (char *)word + value, sizeof version);
                    fits = version == (uint32_t)versions[i];
                }
            }
            if (fits) {
                counter_offset = offset;
                counter_value_offset = value;
                return;
            }
        }
    }
}

/* Where `requires_grad` is written down: a flag of leaves, a grad_fn of results, and for views possibly their base. */
static void find_requires_grad(PyObject *leaf, PyObject *result, PyObject *view) {
    const char *metas[3];
    PyObject *samples[3] = {leaf, result, view};
    char on[META_BYTES];
    Py_ssize_t flag = -1, grad_fn = -1;
    if (fb_autograd_offset < 0) return;
    for (int i = 0; i < 3; i++) {
        metas[i] = (const char *)word_at(FB_IMPL(samples[i]), fb_autograd_offset);
        if (metas[i] == NULL || !readable(metas[i], META_BYTES)) return;
    }
    memcpy(on, metas[0], META_BYTES);
    PyObject *same = PyObject_CallMethod(leaf, "requires_grad_", "O", Py_False);
    if (same == NULL) {
        PyErr_Clear();
        return;
    }
    Py_DECREF(same);
    if ((const char *)word_at(FB_IMPL(leaf), fb_autograd_offset) != metas[0]) return;
    for (Py_ssize_t offset = 8; offset < META_BYTES; offset++) {
        if (on[offset] == metas[0][offset]) continue;
        if (flag >= 0 || on[offset] != 1 || metas[0][offset] != 0) return; /* more than the one flag has changed */
        flag = offset;
    }
    for (int i = 1; i < 3; i++) { /* the node is the first word of its Python object, too */
        PyObject *node = PyObject_GetAttrString(samples[i], "grad_fn");
        Py_ssize_t offset = 8;
        if (node == NULL) {
            PyErr_Clear();
            return;
        }
        while (offset < flag && word_at(metas[i], offset) != word_at(node, sizeof(PyObject))) offset += 8;
        Py_DECREF(node);
        if (offset >= flag || (i == 2 && offset != grad_fn) || word_at(metas[0], offset) != 0) return;
        grad_fn = offset;
    }
    if (flag < 0 || grad_fn < 0 || metas[0][flag + 2] != 0 || metas[1][flag + 2] != 0 || metas[2][flag + 2] != 1) return;
    flag_offset = flag;
    view_flag_offset = flag + 2;
    grad_fn_offset = grad_fn;
}

static PyGetSetDef *find_getter(const char *name) {
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)fb_tensor_type, name);
    PyGetSetDef *getter = NULL;
    if (descriptor == NULL) {
        PyErr_Clear();
    } else {
        if (Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)) getter = ((PyGetSetDescrObject *)descriptor)->d_getset;
        Py_DECREF(descriptor);
    }
    return getter;
}

/* Tensors of several key sets, with versions that no other word is likely to hold. */
static int make_samples(PyObject *torch, PyObject **samples, const int *versions) {
    static const struct {
        const char *dtype;
        int requires_grad;
    } kinds[SAMPLES] = {{"float32", 0}, {"float64", 1}, {"int64", 0}, {"float32", 1}};
    PyObject *zeros = PyObject_GetAttrString(torch, "zeros");
    int status = -1;
    if (zeros == NULL) return -1;
    for (int i = 0; i < SAMPLES; i++) {
        PyObject *dtype = PyObject_GetAttrString(torch, kinds[i].dtype);
        PyObject *args = Py_BuildValue("(i)", 2);
        PyObject *kwargs = dtype == NULL ? NULL : Py_BuildValue("{s:O}", "dtype", dtype);
        samples[i] = kwargs == NULL || args == NULL ? NULL : PyObject_Call(zeros, args, kwargs);
        Py_XDECREF(dtype);
        Py_XDECREF(args);
        Py_XDECREF(kwargs);
        if (samples[i] == NULL) goto done;
        for (int step = 0; step < versions[i]; step++) {
            PyObject *same = PyObject_CallMethod(samples[i], "zero_", NULL);
            if (same == NULL) goto done;
            Py_DECREF(same);
        }
        PyObject *same = PyObject_CallMethod(samples[i], "requires_grad_", "O", kinds[i].requires_grad ? Py_True : Py_False);
        if (same == NULL) goto done;
        Py_DECREF(same);
    }
    status = 0;
done:
    Py_DECREF(zeros);
    return status;
}

static int calibrate(PyObject *torch) {
    static const int versions[SAMPLES] = {3, 7, 2, 11}, needs_grad[SAMPLES] = {0, 1, 0, 1};
    PyObject *samples[SAMPLES] = {NULL}, *torch_c = PyObject_GetAttrString(torch, "_C");
    int status = -1;
    if (torch_c != NULL && make_samples(torch, samples, versions) == 0 && find_handle(samples) == 0 && find_keys(torch_c, samples) == 0) {
        find_autograd(samples, needs_grad, versions);
        PyObject *result = PyObject_CallMethod(samples[3], "mul", "i", 2), *view = PyObject_CallMethod(samples[3], "view", "i", 2);
        if (result != NULL && view != NULL) find_requires_grad(samples[3], result, view);
        status = result == NULL || view == NULL ? -1 : 0;
        Py_XDECREF(result);
        Py_XDECREF(view);
    }
    for (int i = 0; i < SAMPLES; i++) Py_XDECREF(samples[i]);
    Py_XDECREF(torch_c);
    return status;
}

/* ---- questions about a tensor -------------------------------------------- */

uint64_t fb_dispatch_keys(PyObject *tensor) {
    return fb_keys_offset < 0 ? 0 : word_at(FB_IMPL(tensor), fb_keys_offset);
}

int64_t fb_version(PyObject *tensor) {
    if (counter_offset >= 0) {
        uint64_t counter = word_at(FB_IMPL(tensor), counter_offset);
        uint32_t version;
        if (counter == 0) return -1;
        memcpy(&version, (char *)counter + counter_value_offset, sizeof version);
        return version;
    }
    if (version_getter == NULL) return -1;
    PyObject *number = version_getter->get(tensor, version_getter->closure);
    int64_t version = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    PyErr_Clear();
    return version;
}

int fb_bump_version(PyObject *tensor) {
    if (counter_offset >= 0) {
        uint64_t counter = word_at(FB_IMPL(tensor), counter_offset);
        if (counter != 0) __atomic_fetch_add((uint32_t *)((char *)counter + counter_value_offset), 1, __ATOMIC_RELAXED);
        return 0;
    }
    PyObject *graph = PyImport_ImportModule("torch.autograd.graph");
    PyObject *done = graph == NULL ? NULL : PyObject_CallMethod(graph, "increment_version", "O", tensor);
    Py_XDECREF(graph);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

int fb_requires_grad(PyObject *tensor) {
    if (fb_autograd_offset >= 0) {
        const char *meta = (const char *)word_at(FB_IMPL(tensor), fb_autograd_offset);
        if (meta == NULL) return 0;
        if (flag_offset >= 0) {
            if (meta[flag_offset] || word_at(meta, grad_fn_offset) != 0) return 1;
            if (!meta[view_flag_offset]) return 0;
        }
    }
    PyObject *answer = requires_grad_getter != NULL ? requires_grad_getter->get(tensor, requires_grad_getter->closure)
                                                    : PyObject_GetAttrString(tensor, "requires_grad");
    int yes = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return yes;
}

/* Where `requires_grad` of a tensor is decided, besides by whether it has an AutogradMeta at all; 0 when unknown. */
int fb_autograd_words(PyObject *tensor, const void *words[2]) {
    words[0] = words[1] = NULL;
    if (fb_autograd_offset < 0) return 0;
    const char *meta = (const char *)word_at(FB_IMPL(tensor), fb_autograd_offset);
    if (meta == NULL) return 1;
    if (flag_offset < 0 || meta[view_flag_offset]) return 0; /* a view asks its base */
    words[0] = meta + flag_offset / 8 * 8;
    words[1] = meta + grad_fn_offset;
    return 1;
}

/* ---- module --------------------------------------------------------------- */

static PyObject *tensor_facts(PyObject *self, PyObject *tensor) {
    if (!PyObject_TypeCheck(tensor, fb_tensor_type)) return PyErr_Format(PyExc_TypeError, "tensor_facts needs a torch.Tensor");
    void *data = NULL;
    if (fb_torch.get_data_ptr(FB_HANDLE(tensor), &data) != 0) data = NULL;
    return Py_BuildValue("{s:K,s:L,s:O,s:K}", "dispatch_keys", (unsigned long long)fb_dispatch_keys(tensor), "version",
                         (long long)fb_version(tensor), "requires_grad", fb_requires_grad(tensor) ? Py_True : Py_False, "data_ptr",
                         (unsigned long long)(uintptr_t)data);
}

static PyObject *tensor_layout(PyObject *self, PyObject *none) {
    return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n}", "handle", fb_handle_offset, "dispatch_keys", fb_keys_offset, "autograd", fb_autograd_offset, "version",
                         counter_offset, "requires_grad", flag_offset);
}

static PyMethodDef methods[] = {
    {"tensor_facts", tensor_facts, METH_O, "What the native side reads from a tensor: dispatch keys, version, requires_grad, data_ptr."},
    {"tensor_layout", tensor_layout, METH_NOARGS, "Offsets found in this torch's tensors; -1 where one was not found."},
    {NULL, NULL, 0, NULL},
};

/* Calibrates with autograd on and inference mode off, whatever mode the import happens in. */
static int calibrate_plainly(PyObject *torch) {
    PyObject *mode = PyObject_CallMethod(torch, "inference_mode", "O", Py_False);
    PyObject *entered = mode == NULL ? NULL : PyObject_CallMethod(mode, "__enter__", NULL);
    int status = entered == NULL ? -1 : calibrate(torch);
    if (entered != NULL) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *left = PyObject_CallMethod(mode, "__exit__", "OOO", Py_None, Py_None, Py_None);
        if (left == NULL) PyErr_Clear();
        Py_XDECREF(left);
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(entered);
    Py_XDECREF(mode);
    return status;
}

static PyTypeObject *import_type(const char *module, const char *name) {
    PyObject *owner = PyImport_ImportModule(module);
    PyObject *type = owner == NULL ? NULL : PyObject_GetAttrString(owner, name);
    Py_XDECREF(owner);
    if (type != NULL && !PyType_Check(type)) {
        PyErr_Format(PyExc_ImportError, "firebrick: %s.%s is not a type", module, name);
        Py_CLEAR(type);
    }
    return (PyTypeObject *)type;
}

int fb_tensor_init(PyObject *module) {
    PyObject *torch = PyImport_ImportModule("torch");
    int status = -1;
    if (torch == NULL) return -1;
    fb_tensor_type = import_type("torch", "Tensor");
    fb_parameter_type = import_type("torch.nn", "Parameter");
    if (fb_tensor_type != NULL && fb_parameter_type != NULL && find_functions() == 0 && calibrate_plainly(torch) == 0) {
        version_getter = find_getter("_version");
        requires_grad_getter = find_getter("requires_grad");
        status = PyModule_AddFunctions(module, methods);
    }
    Py_DECREF(torch);
    return status;
}
