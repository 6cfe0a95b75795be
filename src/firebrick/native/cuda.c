/* NVIDIA GPUs: memory and streams are torch's, kernels are cubins that the driver loads and launches. */
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CARDS = 64, SHARED_BYTES = 8, DEPENDENT = 6, DEFAULT_SHARED = 48 << 10, MOST_ARGUMENTS = 512 };

CuDriver fb_cuda_driver;
static void *contexts[MOST_CARDS];
static int32_t (*current_stream)(int32_t, void **);
/* A driver that stands in for a card shares this process's memory, and has streams of its own: torch sees no card. */
static int stands_in;
static _Thread_local char message[256];
/* torch's struct of a generator's state: numbers, or within a capture the addresses where replays find them. */
typedef struct {
    uint64_t seed, offset;
    uint32_t within, rest[3];
} RandomState;
static RandomState (*random_state)(void *generator, uint64_t increment);

int fb_cuda_done(int status, const char *what) {
    const char *text = NULL;
    if (status == 0) return 0;
    if (fb_cuda_driver.error_text != NULL) fb_cuda_driver.error_text(status, &text);
    snprintf(message, sizeof message, "CUDA error: %s (%s)", text == NULL ? "unknown" : text, what);
    return -1;
}

static const char *cuda_error(void) { return message; }

int fb_cuda_stands_in(void) { return stands_in; }

int fb_cuda_captures(void *stream) {
    int status;
    uint64_t id;
    size_t count;
    void *graph, *const *nodes;
    const void *edges;
    return fb_cuda_driver.capture_info(stream, &status, &id, &graph, &nodes, &edges, &count) == 0 ? status : -1;
}

void *fb_cuda_context(int index) {
    int device;
    if (index < 0 || index >= MOST_CARDS) return NULL;
    if (contexts[index] == NULL) {
        if (fb_cuda_driver.init == NULL && fb_cuda_done(1, "no driver is open") < 0) return NULL;
        if (fb_cuda_done(fb_cuda_driver.get_device(&device, index), "device") < 0) return NULL;
        if (fb_cuda_done(fb_cuda_driver.retain_context(&contexts[index], device), "context") < 0) return NULL;
    }
    return contexts[index];
}

static int cuda_enter(int index, FbWork *work) {
    void *context = fb_cuda_context(index), *now = NULL;
    work->entered = work->begun = 0;
    work->stream = NULL;
    if (context == NULL || fb_cuda_done(fb_cuda_driver.get_context(&now), "context") < 0) return -1;
    if (now != context && fb_cuda_done(fb_cuda_driver.push_context(context), "context") < 0) return -1;
    work->entered = now != context;
    work->context = context;
    if (current_stream != NULL && current_stream(index, &work->stream) != 0) return fb_cuda_done(1, "current stream");
    return 0;
}

static void cuda_leave(FbWork *work) {
    void *popped;
    if (work->entered) fb_cuda_driver.pop_context(&popped);
    work->entered = 0;
}

static void *cuda_allocate(int index, int64_t bytes, FbHandle *owner) {
    const Dtype *byte = fb_dtype("u8");
    const int32_t type = fb_machine_code(stands_in ? &fb_cpu : &fb_cuda);
    int64_t stride = 1;
    void *memory = NULL;
    if (byte == NULL || fb_host.empty_strided(1, &bytes, &stride, byte->code, type, index, owner) != 0) {
        fb_cuda_done(2, "memory");
        return NULL;
    }
    return fb_torch.get_data_ptr(*owner, &memory) == 0 ? memory : NULL;
}

static void cuda_free(void *memory, FbHandle owner) { fb_torch.delete_tensor(owner); }

void fb_cuda_arguments(const FbLaunch *launch, void **room) {
    static void *nothing;
    for (int i = 0; i < launch->buffer_count; i++) *room++ = launch->values && launch->values[i] ? launch->buffers[i] : &launch->buffers[i];
    for (int i = 0; i < launch->size_count; i++) *room++ = (void *)&launch->sizes[i];
    *room++ = ((const CudaKernel *)launch->kernel)->maps ? &launch->buffers[launch->buffer_count - 1] : &nothing;
    *room = &nothing;
}

/* Fills in the grid and the arguments of a launch: 1, 0 where there is nothing to launch, or -1. */
static int prepare(const FbLaunch *launch, unsigned grid[3], void **arguments) {
    if (launch->buffer_count + launch->size_count + CUDA_TAIL > MOST_ARGUMENTS) return fb_cuda_done(1, "too many arguments");
    for (int i = 0; i < 3; i++) {
        const int64_t programs = i < launch->grid_count ? launch->grid[i] : 1;
        if (programs <= 0) return 0;
        if (programs > INT32_MAX) return fb_cuda_done(1, "too many programs");
        grid[i] = (unsigned)programs;
    }
    fb_cuda_arguments(launch, arguments);
    return 1;
}

/* Makes a device current that another one of the program may have been entered after: 1 where `pop_context` has to undo it. */
static int turn_to(const FbWork *work) {
    void *now = NULL;
    fb_cuda_driver.get_context(&now);
    return now != work->context && fb_cuda_driver.push_context(work->context) == 0;
}

static int turn_back(int turned, int status) {
    void *popped;
    if (turned) fb_cuda_driver.pop_context(&popped);
    return status;
}

/* The first kernel waits for all that came before, so that the others may read what no kernel of the program writes at once. */
static int cuda_launch(FbWork *work, const FbLaunch *launch) {
    const CudaKernel *kernel = launch->kernel;
    void *arguments[MOST_ARGUMENTS];
    CuAttribute dependent = {DEPENDENT, 0, {1}};
    CuConfig config = {{1, 1, 1}, {kernel->threads, 1, 1}, kernel->shared, work->stream, &dependent, kernel->dependent && work->begun};
    int status = prepare(launch, config.grid, arguments);
    if (status <= 0) return status;
    const int turned = turn_to(work);
    work->begun = 1;
    return fb_cuda_done(turn_back(turned, fb_cuda_driver.launch(&config, kernel->function, arguments, NULL)), "launch");
}

int fb_cuda_set_kernel(void *graph, void *node, const FbLaunch *launch) {
    const CudaKernel *kernel = launch->kernel;
    void *arguments[MOST_ARGUMENTS];
    CuKernelNode row = {kernel->function, {1, 1, 1}, {kernel->threads, 1, 1}, kernel->shared, arguments, NULL, NULL, NULL};
    int status = prepare(launch, row.grid, arguments);
    return status <= 0 ? status : fb_cuda_done(fb_cuda_driver.set_kernel(graph, node, &row), "kernel of a graph");
}

/* A number that an object of Python's tells; 0 with an exception set where it doesn't. Takes the reference. */
static uint64_t told_by(PyObject *made) {
    const uint64_t value = made == NULL ? 0 : PyLong_AsUnsignedLongLong(made);
    Py_XDECREF(made);
    return value;
}

/* What a kernel would draw with that takes so much of torch's generator; exceptions may be set. Needs the GIL. Within a
   capture only torch itself knows; elsewhere it is asked by Python, since what it throws from C++ would end the process. */
static RandomState drawn_from(int index, uint64_t more, int captures) {
    RandomState state = {0};
    PyObject *cuda = PyImport_ImportModule("torch.cuda"), *all = cuda == NULL ? NULL : PyObject_GetAttrString(cuda, "default_generators");
    PyObject *generator = all == NULL ? NULL : PySequence_GetItem(all, index);
    if (generator != NULL && !captures) {
        state.seed = told_by(PyObject_CallMethod(generator, "initial_seed", NULL));
        state.offset = PyErr_Occurred() ? 0 : told_by(PyObject_CallMethod(generator, "get_offset", NULL));
        PyObject *done = PyErr_Occurred() ? NULL : PyObject_CallMethod(generator, "set_offset", "K", (unsigned long long)(state.offset + more));
        Py_XDECREF(done);
    } else if (generator != NULL || stands_in) {
        PyErr_Clear();
        void *address = generator == NULL ? &stands_in : (void *)(uintptr_t)told_by(PyObject_GetAttrString(generator, "_cdata"));
        if (random_state == NULL) PyErr_SetString(PyExc_RuntimeError, "this torch does not tell what a capture draws with");
        else if (!PyErr_Occurred()) state = random_state(address, more);
    }
    Py_XDECREF(generator), Py_XDECREF(all), Py_XDECREF(cuda);
    return state;
}

/* Arguments of the call: a tensor whose memory is the caller's, bytes of an element, elements, most blocks, device. */
int fb_cuda_draw(const Program *program, Space *space, const Step *step) {
    const Arg *args = step->call->args;
    const int64_t size = args[1].num.value, count = fb_num(space->registers, args[2].num), most = args[3].num.value;
    const int64_t blocks = (count + 255) / 256 < most ? (count + 255) / 256 : most, threads = 256 * (blocks > 0 ? blocks : 1);
    const int index = (int)args[4].num.value, released = space->thread != NULL;
    uint64_t place = 0;
    int64_t together = 16 / size;
    int device = 0;
    RandomState state = {0};
    while (device < program->device_count - 1 && (program->devices[device].machine != &fb_cuda || program->devices[device].index != index)) device++;
    const FbWork *work = &space->work[device];
    fb_gil_take(space);
    const int turned = turn_to(work), captures = fb_cuda_captures(work->stream);
    if (captures >= 0 && count > 0) state = drawn_from(index, 4 * (uint64_t)((count - 1) / (4 * threads) + 1), captures);
    turn_back(turned, 0);
    if (captures < 0 || PyErr_Occurred()) return fb_torch_error("a stream does not tell whether it captures"), -1;
    if (released) fb_gil_release(space);
    if (args[0].kind == ARG_VIEW) {
        const View *view = &program->views[args[0].view];
        place = (uint64_t)(uintptr_t)space->pointers[view->slot] + (uint64_t)(fb_num(space->registers, view->offset) * size);
    }
    while (together > 1 && (place % (uint64_t)(together * size) != 0 || count % together != 0)) together /= 2;
    const int64_t numbers[] = {(int64_t)state.seed, (int64_t)state.offset, captures == 1 ? (int64_t)state.within : -1, together, threads};
    for (int i = 0; i < step->call->out_count; i++) {
        const int slot = step->call->outs[i];
        if (slot >= 0) space->pointers[slot] = memcpy(space->numbers + 2 * slot, &numbers[i], 8);
    }
    return 0;
}

static int cuda_copy(const FbWork *work, void *to, const void *from, int64_t bytes) {
    const int turned = turn_to(work), status = fb_cuda_driver.copy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, (size_t)bytes, work->stream);
    return fb_cuda_done(turn_back(turned, status), "copy");
}

const FbMachine fb_cuda = {
    .name = "cuda",
    .symbol = "aoti_torch_device_type_cuda",
    .library = "libtorch_cuda.so",
    .prefix = "aoti_torch_cuda_",
    .alignment = 16,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .allocate = cuda_allocate,
    .free = cuda_free,
    .launch = cuda_launch,
    .copy = cuda_copy,
    .error = cuda_error,
};

/* ---- modules: cubins on one device ------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    void *handle;
    int device;
    CudaKernel kernel;
    PyObject *weakrefs;
} Module;

static int fail(void) {
    return FB_RAISE(PyExc_OSError, message);
}

/* Loads a cubin and finds its one kernel; the context is current. */
static int load(Module *self, const char *code, const char *name) {
    if (fb_cuda_done(fb_cuda_driver.load_module(&self->handle, code), "load") < 0) return fail();
    if (fb_cuda_done(fb_cuda_driver.get_function(&self->kernel.function, self->handle, name), name) < 0) return fail();
    if (self->kernel.shared <= DEFAULT_SHARED) return 0;
    int status = fb_cuda_driver.set_attribute(self->kernel.function, SHARED_BYTES, (int)self->kernel.shared);
    return fb_cuda_done(status, "shared memory") < 0 ? fail() : 0;
}

static int is_open(void) {
    if (fb_cuda_driver.init == NULL) PyErr_SetString(PyExc_OSError, "no CUDA driver is open");
    return fb_cuda_driver.init != NULL;
}

static PyObject *module_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"code", "name", "device", "threads", "shared", "dependent", "maps", NULL};
    const char *code, *name;
    Py_ssize_t size;
    unsigned threads, shared;
    int device, dependent, maps = 0;
    FbWork work = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#siIIp|p:CudaModule", names, &code, &size, &name, &device, &threads, &shared, &dependent, &maps))
        return NULL;
    if (!is_open()) return NULL;
    Module *self = (Module *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->device = device;
    self->kernel = (CudaKernel){NULL, threads, shared, (uint8_t)dependent, (uint8_t)maps};
    int status = cuda_enter(device, &work) < 0 ? fail() : load(self, code, name);
    cuda_leave(&work);
    if (status < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void module_dealloc(Module *self) {
    FbWork work = {0};
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    if (self->handle != NULL && cuda_enter(self->device, &work) == 0) fb_cuda_driver.unload_module(self->handle);
    cuda_leave(&work);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *module_kernel(Module *self, PyObject *none) { return PyLong_FromVoidPtr(&self->kernel); }

static PyMethodDef module_methods[] = {
    {"kernel", (PyCFunction)module_kernel, METH_NOARGS, "Address of the kernel, as host tables take it."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject module_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firebrick._native.CudaModule",
    .tp_doc = "A cubin of one kernel, loaded on a device.",
    .tp_basicsize = sizeof(Module),
    .tp_weaklistoffset = offsetof(Module, weakrefs),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = module_new,
    .tp_dealloc = (destructor)module_dealloc,
    .tp_methods = module_methods,
};

/* ---- the driver ----------------------------------------------------------------------- */

#define CU_ROW(name, symbol, args) {#symbol, offsetof(CuDriver, name)},
static const struct {
    const char *name;
    size_t place;
} functions[] = {CU_FUNCTIONS(CU_ROW)};

static PyObject *cuda_open(PyObject *self, PyObject *path) {
    const char *text = PyUnicode_AsUTF8(path);
    void *library = text == NULL ? NULL : dlopen(text, RTLD_NOW | RTLD_LOCAL);
    CuDriver driver = {0};
    if (text == NULL) return NULL;
    if (library == NULL) return PyErr_Format(PyExc_OSError, "no CUDA driver: %s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library, functions[i].name);
        if (function == NULL) return PyErr_Format(PyExc_OSError, "the CUDA driver is too old: it has no %s", functions[i].name);
        memcpy((char *)&driver + functions[i].place, &function, sizeof function);
    }
    void *torch = fb_machine_library(&fb_cuda), *stream = dlsym(library, "aoti_torch_get_current_cuda_stream");
    stands_in = stream != NULL;
    if (stream == NULL && torch != NULL) stream = dlsym(torch, "aoti_torch_get_current_cuda_stream");
    memcpy(&current_stream, &stream, sizeof stream);
    static const char state_name[] = "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm";
    void *state = stands_in ? dlsym(library, state_name) : torch == NULL ? NULL : dlsym(torch, state_name);
    memcpy(&random_state, &state, sizeof state);
    fb_cuda_driver = driver;
    memset(contexts, 0, sizeof contexts);
    if (fb_cuda_done(driver.init(0), "cuInit") < 0 && fail() < 0) return NULL;
    Py_RETURN_NONE;
}

/* A stream that nothing else of the process works on, and that waits for no other; it lasts. */
static PyObject *cuda_stream(PyObject *self, PyObject *device) {
    FbWork work = {0};
    void *stream = NULL;
    int index = (int)PyLong_AsLong(device);
    if (PyErr_Occurred() || !is_open()) return NULL;
    int status = cuda_enter(index, &work) < 0 ? -1 : fb_cuda_done(fb_cuda_driver.new_stream(&stream, 1), "stream");
    cuda_leave(&work);
    return status < 0 && fail() < 0 ? NULL : PyLong_FromVoidPtr(stream);
}

/* Begins the capture of a stream, of what this thread does alone; or ends it, and returns the graph's address. */
static PyObject *cuda_capture(PyObject *self, PyObject *args) {
    enum { THREAD_LOCAL = 1 };
    FbWork work = {0};
    unsigned long long stream;
    void *graph = NULL;
    int index, begin;
    if (!PyArg_ParseTuple(args, "iKp", &index, &stream, &begin) || !is_open()) return NULL;
    int status = cuda_enter(index, &work);
    if (status == 0 && begin) status = fb_cuda_done(fb_cuda_driver.begin_capture((void *)(uintptr_t)stream, THREAD_LOCAL), "capture");
    if (status == 0 && !begin) status = fb_cuda_done(fb_cuda_driver.end_capture((void *)(uintptr_t)stream, &graph), "capture");
    cuda_leave(&work);
    return status < 0 ? PyErr_Format(PyExc_RuntimeError, "%s", message) : PyLong_FromVoidPtr(graph);
}

static PyObject *cuda_forget(PyObject *self, PyObject *graph) {
    fb_cuda_driver.forget_graph(PyLong_AsVoidPtr(graph));
    Py_RETURN_NONE;
}

static PyObject *cuda_is_open(PyObject *self, PyObject *none) { return PyBool_FromLong(fb_cuda_driver.init != NULL); }

static PyMethodDef methods[] = {
    {"cuda_is_open", cuda_is_open, METH_NOARGS, "Whether a CUDA driver is open."},
    {"cuda_capture", cuda_capture, METH_VARARGS, "Begin or end a capture."},
    {"cuda_forget", cuda_forget, METH_O, "Destroy a graph."},
    {"cuda_stream", cuda_stream, METH_O, "A new stream on a device."},
    {"cuda_open", cuda_open, METH_O, "Open the CUDA driver at a path."},
    {NULL, NULL, 0, NULL},
};

int fb_cuda_init(PyObject *module) {
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
    return PyModule_AddType(module, &module_type);
}
