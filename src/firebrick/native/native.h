/* What the parts of firebrick._native share. No header of torch: its C ABI is found with dlsym at import. */
#ifndef FIREBRICK_NATIVE_H
#define FIREBRICK_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Raises an exception; the -1 by which functions say that one is set. */
#define FB_RAISE(...) (PyErr_Format(__VA_ARGS__), -1)

/* Each part adds its types and functions to the module; 0 on success, -1 with an exception set. */
int fb_tensor_init(PyObject *module); /* tensor.c: layout of tensor objects, torch's C ABI */
int fb_frame_init(PyObject *module);  /* frame.c: the frame evaluation hook */
int fb_guards_init(PyObject *module); /* guards.c: guard plans */
int fb_host_init(PyObject *module);   /* host.c: executables */

/* ---- tensor.c ---------------------------------------------------------- */

/* An at::Tensor*: the address of a word that holds a TensorImpl*. */
typedef void *FbHandle;

/* Offset of that word inside a torch.Tensor object, found at import. */
extern Py_ssize_t fb_handle_offset;
#define FB_HANDLE(object) ((FbHandle)((char *)(object) + fb_handle_offset))
#define FB_IMPL(object) (*(void **)FB_HANDLE(object))

/* torch.Tensor and torch.nn.Parameter; exact type tests on the guards' fast path. */
extern PyTypeObject *fb_tensor_type, *fb_parameter_type;

/* Functions of torch's C ABI (aoti_torch_*), each returning 0 on success. */
typedef struct {
    int32_t (*get_data_ptr)(FbHandle, void **);
    int32_t (*get_dim)(FbHandle, int64_t *);
    int32_t (*get_sizes)(FbHandle, int64_t **);
    int32_t (*get_strides)(FbHandle, int64_t **);
    int32_t (*get_dtype)(FbHandle, int32_t *);
    int32_t (*get_device_type)(FbHandle, int32_t *);
    int32_t (*get_device_index)(FbHandle, int32_t *);
    int32_t (*get_layout)(FbHandle, int32_t *);
    int32_t (*get_storage_offset)(FbHandle, int64_t *);
    int32_t (*delete_tensor)(FbHandle);
    int32_t (*grad_mode_is_enabled)(void);
} FbTorch;
extern FbTorch fb_torch;

/* A function of torch and its place in a struct of pointers, NULL there if this torch lacks one that is not needed. */
typedef struct {
    const char *name;
    size_t place;
    int needed;
} FbFunction;
/* Fills the places of a struct; -1 with ImportError set. */
int fb_find_functions(const FbFunction *table, size_t count, void *into);

/* libtorch_cpu.so as torch loaded it, for dlsym; NULL when it is not there. */
void *fb_torch_library(void);

/* Byte offsets of the dispatch key set and of the pointer to an AutogradMeta in a TensorImpl, -1 where not found. */
extern Py_ssize_t fb_keys_offset, fb_autograd_offset;
/* Words whose change may change `requires_grad`, NULL for none; 0 when they are unknown. */
int fb_autograd_words(PyObject *tensor, const void *words[2]);
/* Raw bits of the tensor's dispatch key set; 0 when their place could not be found. */
uint64_t fb_dispatch_keys(PyObject *tensor);
/* The tensor's version counter, -1 when it has none or its place could not be found. */
int64_t fb_version(PyObject *tensor);
/* Counts one in-place change of the tensor, as torch's own in-place ops do; -1 with an exception set. */
int fb_bump_version(PyObject *tensor);
/* 1 when the tensor requires a gradient, 0 when not. */
int fb_requires_grad(PyObject *tensor);

/* ---- guards.c and frame.c ------------------------------------------------ */

/* What a guard plan looks at: a frame that has not started. All references are borrowed. */
typedef struct {
    PyObject *const *locals; /* argument slots, in the order of the code's varnames */
    PyObject *globals, *builtins;
    PyObject *closure; /* tuple of cells, or NULL */
} FbFrame;

extern PyTypeObject fb_plan_type;
/* 1 when all guards of the plan hold, 0 when not; leaves no exception behind. */
int fb_plan_check(PyObject *plan, const FbFrame *frame);
/* Calls drop(owner) once, when an object that the plan can't do without dies. Owner NULL takes that back. */
void fb_plan_set_owner(PyObject *plan, void *owner, void (*drop)(void *owner));
/* Whether a plan has conditions on sizes: it is for many of them. */
int fb_plan_has_sizes(PyObject *plan);
enum FbPlanState { PLAN_FREE, PLAN_OWNED, PLAN_DEAD };
enum FbPlanState fb_plan_state(PyObject *plan);
/* The FbFrame of a firebrick._native.Frame, which keeps it alive; NULL with TypeError for another object. */
const FbFrame *fb_frame_of(PyObject *view);

#endif
