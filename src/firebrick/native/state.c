/* Torch's global state as numbers.
 *
 * Each kind has a Python function of torch's, and a native reader where libtorch exports what it needs. A native
 * reader is used only while `set_state_readers` found that both agree.
 */
#define _GNU_SOURCE
#include "plan.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static PyObject *readers[STATE_COUNT];
static char trusted[STATE_COUNT];
static PyObject *forward_ad; /* variables of the module of forward-mode gradients, which counts their levels */
static uint16_t functorch_key; /* the dispatch key that is on inside of a transform of torch.func */

/* ---- native readers ----------------------------------------------------------------- */

enum { CPU = 0, CUDA = 1 };

/* Functions of libc10 and libtorch_cpu by their mangled names: they take and return plain numbers, or a reference. */
static struct {
    bool (*is_inference)(void);
    bool (*autocast_enabled)(int8_t device);
    int8_t (*autocast_dtype)(int8_t device);
    bool (*autocast_cache)(void);
    void *(*context)(void);
    bool (*deterministic)(const void *context);
    bool (*deterministic_warn)(const void *context);
    uint16_t (*default_dtype)(void);
    int8_t (*function_disabled)(void);
    int64_t (*function_modes)(void);
    int64_t (*dispatch_modes)(void);
    void *const *(*tracing)(void);
    bool (*key_included)(uint16_t key);
} torch_state;

static const FbFunction symbols[] = {
    {"_ZN3c1013InferenceMode10is_enabledEv", offsetof(__typeof__(torch_state), is_inference), 0},
    {"_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", offsetof(__typeof__(torch_state), autocast_enabled), 0},
    {"_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", offsetof(__typeof__(torch_state), autocast_dtype), 0},
    {"_ZN2at8autocast25is_autocast_cache_enabledEv", offsetof(__typeof__(torch_state), autocast_cache), 0},
    {"_ZN2at13globalContextEv", offsetof(__typeof__(torch_state), context), 0},
    {"_ZNK2at7Context23deterministicAlgorithmsEv", offsetof(__typeof__(torch_state), deterministic), 0},
    {"_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv", offsetof(__typeof__(torch_state), deterministic_warn), 0},
    {"_ZN3c1017get_default_dtypeEv", offsetof(__typeof__(torch_state), default_dtype), 0},
    {"_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv", offsetof(__typeof__(torch_state), function_disabled), 0},
    {"_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", offsetof(__typeof__(torch_state), function_modes), 0},
    {"_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", offsetof(__typeof__(torch_state), dispatch_modes), 0},
    {"_ZN5torch3jit6tracer15getTracingStateEv", offsetof(__typeof__(torch_state), tracing), 0},
    {"_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE", offsetof(__typeof__(torch_state), key_included), 0},
};

/* Enabled flags of CPU and CUDA, the cache flag, and the dtypes of those that are enabled. */
static int64_t autocast_number(int64_t cpu, int64_t cuda, int64_t cpu_dtype, int64_t cuda_dtype, int64_t cache) {
    if (!cpu && !cuda) return 0;
    return cpu | cuda << 1 | (cache != 0) << 2 | (cpu ? cpu_dtype << 8 : 0) | (cuda ? cuda_dtype << 16 : 0);
}

/* Levels of forward-mode gradients that are open; -1 where that is not known. */
static int64_t forward_levels(void) {
    PyObject *level = forward_ad == NULL ? NULL : PyDict_GetItemString(forward_ad, "_current_level");
    return level == NULL || !PyLong_CheckExact(level) ? -1 : PyLong_AsLongLong(level) + 1;
}

/* -1 where a function is missing. */
static int64_t read_native(int kind) {
    switch (kind) {
    case STATE_GRAD_MODE: return fb_torch.grad_mode_is_enabled() != 0;
    case STATE_INFERENCE_MODE: return torch_state.is_inference == NULL ? -1 : torch_state.is_inference();
    case STATE_AUTOCAST:
        if (torch_state.autocast_enabled == NULL || torch_state.autocast_dtype == NULL || torch_state.autocast_cache == NULL) return -1;
        return autocast_number(torch_state.autocast_enabled(CPU), torch_state.autocast_enabled(CUDA), torch_state.autocast_dtype(CPU),
                               torch_state.autocast_dtype(CUDA), torch_state.autocast_cache());
    case STATE_DETERMINISTIC: {
        if (torch_state.context == NULL || torch_state.deterministic == NULL || torch_state.deterministic_warn == NULL) return -1;
        void *context = torch_state.context();
        return !torch_state.deterministic(context) ? 0 : torch_state.deterministic_warn(context) ? 2 : 1;
    }
    case STATE_DEFAULT_DTYPE: return torch_state.default_dtype == NULL ? -1 : torch_state.default_dtype();
    case STATE_TORCH_FUNCTION:
        if (torch_state.function_disabled == NULL || torch_state.function_modes == NULL || torch_state.dispatch_modes == NULL) return -1;
        return torch_state.function_disabled() | torch_state.function_modes() << 8 | torch_state.dispatch_modes() << 24;
    case STATE_TRANSFORMS:
        if (torch_state.tracing == NULL || torch_state.key_included == NULL || forward_levels() < 0) return -1;
        return (*torch_state.tracing() != NULL) | torch_state.key_included(functorch_key) << 1 | forward_levels() << 8;
    default: return -1;
    }
}

static int64_t read_python(int kind) {
    PyObject *answer = readers[kind] == NULL ? NULL : PyObject_CallNoArgs(readers[kind]);
    int64_t value = answer == NULL ? -1 : PyLong_AsLongLong(answer);
    Py_XDECREF(answer);
    if (PyErr_Occurred()) PyErr_Clear();
    return value;
}

/* Python tells what hooks a thread has that may have set some. */
static _Thread_local bool may_have_hooks;

int64_t fb_state_read(int kind) {
    return trusted[kind] && !(may_have_hooks && kind == STATE_TRANSFORMS) ? read_native(kind) : read_python(kind);
}

/* ---- module ----------------------------------------------------------------------------- */

static PyObject *state_read(PyObject *self, PyObject *args) {
    int kind, native = -1;
    if (!PyArg_ParseTuple(args, "i|p:state_read", &kind, &native)) return NULL;
    if (kind < 0 || kind >= STATE_COUNT) return PyErr_Format(PyExc_ValueError, "no such kind of state");
    return PyLong_FromLongLong(native < 0 ? fb_state_read(kind) : native ? read_native(kind) : read_python(kind));
}

static PyObject *set_state_readers(PyObject *self, PyObject *args) {
    PyObject *functions, *variables;
    if (!PyArg_ParseTuple(args, "O!O!H:set_state_readers", &PyTuple_Type, &functions, &PyDict_Type, &variables, &functorch_key)) return NULL;
    if (PyTuple_GET_SIZE(functions) != STATE_COUNT) return PyErr_Format(PyExc_ValueError, "expected a tuple of %d functions", STATE_COUNT);
    Py_XSETREF(forward_ad, Py_NewRef(variables));
    for (int i = 0; i < STATE_COUNT; i++) Py_XSETREF(readers[i], Py_NewRef(PyTuple_GET_ITEM(functions, i)));
    for (int i = 0; i < STATE_COUNT; i++) trusted[i] = read_native(i) >= 0 && read_native(i) == read_python(i);
    Py_RETURN_NONE;
}

static PyObject *look_for_hooks(PyObject *self, PyObject *on) {
    may_have_hooks = on == Py_True;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"look_for_hooks", look_for_hooks, METH_O, "look_for_hooks(on): whether the function of TRANSFORMS is asked in this thread, which may have hooks."},
    {"state_read", state_read, METH_VARARGS, "state_read(kind, native=None): one kind of torch's global state as a number."},
    {"set_state_readers", set_state_readers, METH_VARARGS,
     "set_state_readers(functions, forward_ad, key): Python functions, one a kind; a native reader that agrees with its function replaces it. "
     "The variables of the module of forward-mode gradients, and the number of functorch's dispatch key, are what two of those read."},
    {NULL, NULL, 0, NULL},
};

int fb_state_init(PyObject *module) {
    static const char *const libraries[] = {"libtorch_cpu.so", "libc10.so"};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        void *library = dlopen(libraries[i], RTLD_NOLOAD | RTLD_LAZY);
        for (size_t j = 0; library != NULL && j < sizeof symbols / sizeof *symbols; j++) {
            void *function = dlsym(library, symbols[j].name);
            if (function != NULL) memcpy((char *)&torch_state + symbols[j].place, &function, sizeof function);
        }
    }
    return PyModule_AddFunctions(module, methods);
}
