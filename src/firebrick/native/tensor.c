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

/* The offset at which each sample, or what it points to, has the number that Python tells of it; -1 where there is none. */
static Py_ssize_t find_word(PyObject *const *samples, PyObject *numbers, Py_ssize_t offset, Py_ssize_t words, int in_impl) {
    for (int same = 0; offset < words * 8; offset += 8, same = 0) {
        for (int i = 0; i < SAMPLES; i++)
            same += word_at(in_impl ? FB_IMPL(samples[i]) : samples[i], offset) == PyLong_AsUnsignedLongLongMask(PyList_GET_ITEM(numbers, i));
        if (same == SAMPLES) return offset;
    }
    return -1;
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

/* Tensors of several key sets, with versions that no other word is likely to hold, then a result and a view of the last. They
   are made with autograd on and inference mode off, whatever mode the import happens in. */
static const char samples_text[] =
    "import torch\n"
    "with torch.inference_mode(False):\n"
    "    kinds = (torch.float32, 3, False), (torch.float64, 7, True), (torch.int64, 2, False), (torch.float32, 11, True)\n"
    "    samples = [torch.zeros(2, dtype=dtype) for dtype, _, _ in kinds]\n"
    "    for sample, (_, version, requires_grad) in zip(samples, kinds):\n"
    "        for _ in range(version): sample.zero_()\n"
    "        sample.requires_grad_(requires_grad)\n"
    "    samples += [samples[3].mul(2), samples[3].view(2)]\n"
    "places, keys = [s._cdata for s in samples], [torch._C._dispatch_keys(s).raw_repr() for s in samples]\n";

static int calibrate(void) {
    static const int versions[SAMPLES] = {3, 7, 2, 11}, needs_grad[SAMPLES] = {0, 1, 0, 1};
    PyObject *names = Py_BuildValue("{s:O}", "__builtins__", PyEval_GetBuiltins());
    PyObject *done = names == NULL ? NULL : PyRun_String(samples_text, Py_file_input, names, names);
    if (done != NULL) {
        PyObject *const *samples = ((PyListObject *)PyDict_GetItemString(names, "samples"))->ob_item;
        fb_handle_offset = find_word(samples, PyDict_GetItemString(names, "places"), sizeof(PyObject), OBJECT_WORDS, 0);
        if (fb_handle_offset < 0) {
            PyErr_SetString(PyExc_ImportError, "firebrick: the place of TensorImpl in torch.Tensor was not found; this torch is not supported");
        } else {
            fb_keys_offset = find_word(samples, PyDict_GetItemString(names, "keys"), 8, IMPL_WORDS, 1);
            find_autograd(samples, needs_grad, versions);
            find_requires_grad(samples[3], samples[4], samples[5]);
        }
    }
    Py_XDECREF(done);
    Py_XDECREF(names);
    return PyErr_Occurred() ? -1 : 0;
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
    fb_tensor_type = import_type("torch", "Tensor");
    fb_parameter_type = import_type("torch.nn", "Parameter");
    if (fb_tensor_type == NULL || fb_parameter_type == NULL || find_functions() < 0 || calibrate() < 0) return -1;
    version_getter = find_getter("_version");
    requires_grad_getter = find_getter("requires_grad");
    return PyModule_AddFunctions(module, methods);
}
