/* Library calls of the host program: three routes into torch.
 *
 * DIRECT    a function of torch's C ABI for this very op; the dispatcher is not involved.
 * DISPATCH  torch's C interface to its dispatcher, for schemas whose types it carries.
 * PYTHON    torch.ops, for everything else. It is also where a failed call is repeated, because its
 *           exceptions tell the user what eager would have told.
 */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

FbHost fb_host;

/* ---- direct calls -------------------------------------------------------------- */

/* Letters say how the C function takes the arguments of the schema, in order:
 * o  the last argument (out=), a tensor   t tensor        T tensor or NULL, by address   c tensors (address, count)
 * i  integer     b boolean               d double        D double or NULL, by address   I integer or NULL, by address
 * L  integers (address, count)           s text          S text or NULL, by address
 * N  numbers or NULLs, each by address (address, count)   r address of a result   x of a number that nobody reads */
static const struct {
    const char *op, *symbol, *letters;
} direct[] = {
    {"aten::mm.out", "mm_out", "ott"},
    {"aten::bmm.out", "bmm_out", "ott"},
    {"aten::addmm.out", "addmm_out", "otttdd"},
    {"aten::baddbmm.out", "baddbmm_out", "otttdd"},
    {"aten::convolution", "convolution", "ttTLLLbLir"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu", "tttdbTDrr"},
    {"aten::_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention", "tttTbdbDrrrr"},
    {"aten::_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention", "tttdbbDrrrrxxrrr"},
    {"aten::_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention", "tttTbdbbDrrrrxxrrr"},
    {"aten::max_pool2d_with_indices", "max_pool2d_with_indices", "tLLLLbrr"},
    {"aten::avg_pool2d", "avg_pool2d", "tLLLbbIr"},
    {"aten::_adaptive_avg_pool2d", "_adaptive_avg_pool2d", "tLr"},
    {"aten::cat", "cat", "cir"},
    {"aten::topk", "topk", "tiibbrr"},
    {"aten::sort", "sort", "tibrr"},
    {"mkldnn::_linear_pointwise", "_linear_pointwise", "ttTsNSr"},
    {"mkldnn::_linear_pointwise.binary", "_linear_pointwise_binary", "tttTsr"},
    {"mkldnn::_convolution_pointwise", "mkldnn__convolution_pointwise", "ttTLLLisNSr"},
    {"mkldnn::_convolution_pointwise.binary", "mkldnn__convolution_pointwise_binary", "tttTLLLisDSNSr"},
    {"mkldnn::_convolution_pointwise_.binary", "mkldnn__convolution_pointwise_binary_", "tttTLLLisDSNSr"},
    {"mkl::_mkl_linear", "_mkl_linear", "tttTir"},
};

enum { MAX_WORDS = 28, MAX_REALS = 4, MAX_TENSORS = 512, MAX_NUMBERS = 64, MAX_RESULTS = 10, MAX_STACK = 64 };

/* What the arguments of one call point to. Too many of anything: the call goes through Python. */
typedef struct {
    uint64_t words[MAX_WORDS];
    double reals[MAX_REALS];
    FbHandle temporary[MAX_TENSORS], tensors[MAX_TENSORS], results[MAX_RESULTS];
    int64_t integers[MAX_NUMBERS];
    double numbers[MAX_NUMBERS];
    void *addresses[MAX_NUMBERS];
    int word_count, real_count, temporary_count, tensor_count, integer_count, number_count, address_count, result_count;
} Frame;

static FbHandle tensor_arg(const Program *program, Space *space, Frame *frame, const Arg *arg) {
    int temporary = 0;
    if (arg->kind != ARG_VIEW || frame->temporary_count == MAX_TENSORS) return NULL;
    FbHandle handle = fb_view(program, space, arg->view, &temporary);
    if (handle != NULL && temporary) frame->temporary[frame->temporary_count++] = handle;
    return handle;
}

static double number_of(const Space *space, const Arg *arg) {
    return arg->kind == ARG_FLOAT ? arg->real : (double)fb_num(space->registers, arg->num);
}

static int is_number(const Arg *arg) { return arg->kind == ARG_FLOAT || arg->kind == ARG_INT || arg->kind == ARG_BOOL; }

/* The address of a double that lives as long as the frame. */
static void *number_address(const Space *space, Frame *frame, const Arg *arg) {
    if (!is_number(arg) || frame->number_count == MAX_NUMBERS) return NULL;
    frame->numbers[frame->number_count] = number_of(space, arg);
    return &frame->numbers[frame->number_count++];
}

/* An address as the value of a pointer argument. */
static void *keep_address(Frame *frame, void *address) {
    if (frame->address_count == MAX_NUMBERS) return NULL;
    frame->addresses[frame->address_count] = address;
    return &frame->addresses[frame->address_count++];
}

static int direct_list(const Program *program, Space *space, Frame *frame, const Arg *arg, char letter) {
    int *count = letter == 'c' ? &frame->tensor_count : letter == 'L' ? &frame->integer_count : &frame->address_count;
    uint64_t *start = letter == 'c' ? (uint64_t *)frame->tensors : letter == 'L' ? (uint64_t *)frame->integers : (uint64_t *)frame->addresses;
    if (arg->kind != ARG_LIST || *count + arg->count > (letter == 'c' ? MAX_TENSORS : MAX_NUMBERS) || frame->word_count + 2 > MAX_WORDS) return -1;
    start += *count;
    for (int i = 0; i < arg->count; i++) {
        const Arg *item = &arg->items[i];
        void *word = NULL;
        if (letter == 'L' && item->kind != ARG_INT) return -1;
        if (letter == 'L') word = (void *)(uintptr_t)fb_num(space->registers, item->num);
        else if (item->kind != ARG_NONE) word = letter == 'c' ? tensor_arg(program, space, frame, item) : number_address(space, frame, item);
        if (word == NULL && letter != 'L' && (letter == 'c' || item->kind != ARG_NONE)) return -1;
        memcpy(start + i, &word, sizeof word);
    }
    *count += arg->count;
    frame->words[frame->word_count++] = (uint64_t)(uintptr_t)start;
    frame->words[frame->word_count++] = (uint64_t)arg->count;
    return 0;
}

/* The word of one scalar argument; -1 when the letter can't carry it. */
static int direct_word(const Program *program, Space *space, Frame *frame, const Arg *arg, char letter, void **word) {
    *word = NULL;
    if (arg->kind == ARG_NONE) return strchr("TDIS", letter) == NULL ? -1 : 0;
    switch (letter) {
    case 't':
    case 'o': *word = tensor_arg(program, space, frame, arg); break;
    case 'T': {
        FbHandle handle = tensor_arg(program, space, frame, arg);
        *word = handle == NULL ? NULL : keep_address(frame, handle);
        break;
    }
    case 'i':
    case 'b':
        if (arg->kind != ARG_INT && arg->kind != ARG_BOOL) return -1;
        *word = (void *)(uintptr_t)fb_num(space->registers, arg->num);
        return 0;
    case 'I':
        if (arg->kind != ARG_INT || frame->integer_count == MAX_NUMBERS) return -1;
        frame->integers[frame->integer_count] = fb_num(space->registers, arg->num);
        *word = &frame->integers[frame->integer_count++];
        break;
    case 'D': *word = number_address(space, frame, arg); break;
    case 's': *word = arg->kind == ARG_STR ? (void *)arg->text : NULL; break;
    case 'S': *word = arg->kind == ARG_STR ? keep_address(frame, (void *)arg->text) : NULL; break;
    }
    return *word == NULL ? -1 : 0;
}

static int direct_arguments(const Program *program, Space *space, const Call *call, Frame *frame) {
    int next = 0;
    for (const char *letter = call->letters; *letter != 0; letter++) {
        if (frame->word_count == MAX_WORDS) return -1;
        if (*letter == 'r' || *letter == 'x') {
            frame->words[frame->word_count++] = (uint64_t)(uintptr_t)&frame->results[frame->result_count++];
            continue;
        }
        if (*letter != 'o' && next == call->count) return -1;
        const Arg *arg = *letter == 'o' ? &call->args[call->count - 1] : &call->args[next++];
        if (*letter == 'd') {
            if (!is_number(arg) || frame->real_count == MAX_REALS) return -1;
            frame->reals[frame->real_count++] = number_of(space, arg);
        } else if (strchr("cLN", *letter) != NULL) {
            if (direct_list(program, space, frame, arg, *letter) < 0) return -1;
        } else {
            void *word;
            if (direct_word(program, space, frame, arg, *letter, &word) < 0) return -1;
            frame->words[frame->word_count++] = (uint64_t)(uintptr_t)word;
        }
    }
    return 0;
}

/* Integers and addresses travel in one sequence of registers and stack words and doubles in another, in the
 * calling conventions of x86-64 and AArch64 Linux alike; words beyond what the function reads do no harm. */
static int32_t invoke(void *symbol, const uint64_t *w, const double *d) {
    typedef int32_t (*Function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, double, double, double, double);
    Function function;
    memcpy(&function, &symbol, sizeof function);
    return function(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15], w[16], w[17], w[18],
                    w[19], w[20], w[21], w[22], w[23], w[24], w[25], w[26], w[27], d[0], d[1], d[2], d[3]);
}

static void drop_temporaries(Frame *frame) {
    for (int i = 0; i < frame->temporary_count; i++) fb_torch.delete_tensor(frame->temporary[i]);
    frame->temporary_count = 0;
}

/* ---- results --------------------------------------------------------------------- */

static int copy_as_planned(const Program *program, const Space *space, const Slot *slot, FbHandle *handle) {
    FbHandle copy;
    if (fb_new_tensor(program, space, slot, &copy) != 0) return -1;
    if (fb_host.copy(copy, *handle, 0) != 0) {
        fb_torch.delete_tensor(copy);
        return -1;
    }
    fb_torch.delete_tensor(*handle);
    *handle = copy;
    return 0;
}

/* Gives result `position` to its slot, which then owns it. */
static int keep_result(const Program *program, Space *space, const Call *call, int position, FbHandle handle) {
    int slot = position < call->out_count ? call->outs[position] : -1;
    if (slot < 0 || call->into) {
        fb_torch.delete_tensor(handle);
        return 0;
    }
    if (!fb_has_layout(space, &program->slots[slot], handle) && copy_as_planned(program, space, &program->slots[slot], &handle) < 0) {
        fb_torch.delete_tensor(handle);
        return -1;
    }
    if (space->owned[slot]) fb_torch.delete_tensor(space->handles[slot]);
    space->handles[slot] = handle;
    space->owned[slot] = 1;
    return fb_torch.get_data_ptr(handle, &space->pointers[slot]) == 0 ? 0 : -1;
}

/* 0: done. 1: torch refused, go through Python. -1: results could not be kept. */
static int call_direct(const Program *program, Space *space, const Call *call) {
    Frame frame;
    frame.word_count = frame.real_count = frame.temporary_count = frame.tensor_count = 0;
    frame.integer_count = frame.number_count = frame.address_count = frame.result_count = 0;
    memset(frame.results, 0, sizeof frame.results);
    int status = direct_arguments(program, space, call, &frame) < 0 || invoke(call->symbol, frame.words, frame.reals) != 0;
    drop_temporaries(&frame);
    const char *letter = strpbrk(call->letters, "rx");
    for (int i = 0; i < frame.result_count && status == 0; i++, letter++) {
        if (*letter == 'r' && frame.results[i] != NULL && keep_result(program, space, call, i, frame.results[i]) < 0) status = -1;
    }
    return status;
}

/* ---- the dispatcher's C interface ---------------------------------------------------- */

static int stack_item(const Program *program, Space *space, const Arg *arg, char base, uint64_t *out);

static int stack_list(const Program *program, Space *space, const Arg *arg, const Type *type, uint64_t *out) {
    void *list;
    if (arg->kind != ARG_LIST || fb_host.new_list(arg->count, &list) != 0) return -1;
    for (int i = 0; i < arg->count; i++) {
        uint64_t word;
        if (stack_item(program, space, &arg->items[i], type->base, &word) < 0 || fb_host.list_push(list, word) != 0) return -1;
    }
    *out = (uint64_t)(uintptr_t)list;
    return 0;
}

static int stack_item(const Program *program, Space *space, const Arg *arg, char base, uint64_t *out) {
    *out = 0;
    switch (base) {
    case 'T': {
        FbHandle handle, owned;
        int temporary = 0;
        if (arg->kind != ARG_VIEW || (handle = fb_view(program, space, arg->view, &temporary)) == NULL) return -1;
        if (!temporary && fb_host.new_handle(handle, &owned) != 0) return -1;
        *out = (uint64_t)(uintptr_t)(temporary ? handle : owned);
        return 0;
    }
    case 'i':
        if (arg->kind != ARG_INT && arg->kind != ARG_BOOL) return -1;
        *out = (uint64_t)fb_num(space->registers, arg->num);
        return 0;
    case 'b':
        if (arg->kind != ARG_BOOL) return -1;
        *out = (uint64_t)(arg->num.value != 0);
        return 0;
    case 'd': {
        double real = number_of(space, arg);
        if (!is_number(arg)) return -1;
        memcpy(out, &real, sizeof real);
        return 0;
    }
    case 's': {
        void *string;
        if (arg->kind != ARG_STR || fb_host.new_string(arg->text, strlen(arg->text), &string) != 0) return -1;
        *out = (uint64_t)(uintptr_t)string;
        return 0;
    }
    case 'y':
    case 'l':
    case 'm':
        if (arg->kind != ARG_ENUM || arg->num.value < 0) return -1;
        *out = (uint64_t)(uint32_t)arg->num.value;
        return 0;
    default: return -1;
    }
}

static int stack_value(const Program *program, Space *space, const Arg *arg, const Type *type, uint64_t *out) {
    *out = 0;
    if (type->maybe && arg->kind == ARG_NONE) return 0;
    uint64_t word;
    if ((type->list ? stack_list(program, space, arg, type, &word) : stack_item(program, space, arg, type->base, &word)) < 0) return -1;
    if (!type->maybe) {
        *out = word;
        return 0;
    }
    /* The dispatcher's side frees it with delete; before 2.13 it has no function that allocates it, and delete is free. */
    uint64_t *cell = NULL;
    if (fb_host.new_cell != NULL ? fb_host.new_cell(&cell) != 0 : (cell = malloc(sizeof *cell)) == NULL) return -1;
    *cell = word;
    *out = (uint64_t)(uintptr_t)cell;
    return 0;
}

static int call_dispatcher(const Program *program, Space *space, const Call *call) {
    uint64_t stack[MAX_STACK] = {0};
    for (int i = 0; i < call->count; i++) {
        if (stack_value(program, space, &call->args[i], &call->types[i], &stack[i]) < 0) return 1;
    }
    if (fb_host.call_dispatcher(call->name, call->overload, stack) != 0) return 1;
    for (int i = 0; i < call->out_count; i++) {
        if (keep_result(program, space, call, i, (FbHandle)(uintptr_t)stack[i]) < 0) return -1;
    }
    return 0;
}

/* ---- Python ------------------------------------------------------------------------------ */

PyObject *fb_wrap(FbHandle handle) {
    static PyObject *steal;
    if (fb_host.wrap != NULL) return fb_host.wrap(handle);
    FbHandle owned;
    if (steal == NULL) {
        PyObject *module = PyImport_ImportModule("torch._C._aoti");
        steal = module == NULL ? NULL : PyObject_GetAttrString(module, "alloc_tensor_by_stealing_from_void_ptr");
        Py_XDECREF(module);
        if (steal == NULL) return NULL;
    }
    if (fb_host.new_handle(handle, &owned) != 0) {
        fb_torch_error("a tensor could not be shared");
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(owned, NULL, NULL);
    PyObject *tensor = capsule == NULL ? NULL : PyObject_CallOneArg(steal, capsule);
    Py_XDECREF(capsule);
    return tensor;
}

static PyObject *python_arg(const Program *program, Space *space, const Arg *arg) {
    switch (arg->kind) {
    case ARG_NONE: Py_RETURN_NONE;
    case ARG_INT: return PyLong_FromLongLong(fb_num(space->registers, arg->num));
    case ARG_VIEW: {
        int temporary = 0;
        FbHandle handle = fb_view(program, space, arg->view, &temporary);
        if (handle == NULL) {
            fb_torch_error("a view could not be made");
            return NULL;
        }
        PyObject *tensor = fb_wrap(handle);
        if (temporary) fb_torch.delete_tensor(handle);
        return tensor;
    }
    case ARG_LIST: {
        PyObject *list = PyList_New(arg->count);
        for (int i = 0; list != NULL && i < arg->count; i++) {
            PyObject *item = python_arg(program, space, &arg->items[i]);
            if (item == NULL) {
                Py_CLEAR(list);
            } else {
                PyList_SET_ITEM(list, i, item);
            }
        }
        return list;
    }
    default: return Py_NewRef(arg->object);
    }
}

/* Walks what the op returned: a tensor, a number, or a nest of tuples and lists of these. */
static int python_results(const Program *program, Space *space, const Call *call, PyObject *value, int *position) {
    if (PyTuple_Check(value) || PyList_Check(value)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++) {
            if (python_results(program, space, call, fb_item(value, i), position) < 0) return -1;
        }
        return 0;
    }
    int place = (*position)++;
    if (!PyObject_TypeCheck(value, fb_tensor_type)) return 0;
    FbHandle handle;
    if (fb_host.new_handle(FB_HANDLE(value), &handle) != 0 || keep_result(program, space, call, place, handle) < 0) {
        fb_torch_error("a result could not be kept");
        return -1;
    }
    return 0;
}

static int call_python(const Program *program, Space *space, const Call *call) {
    PyObject **values = calloc(call->count + 1, sizeof *values);
    int status = values == NULL ? -1 : 0, made = 0, position = 0;
    for (; status == 0 && made < call->count; made++) {
        values[made] = python_arg(program, space, &call->args[made]);
        if (values[made] == NULL) status = -1;
    }
    if (status == 0) {
        PyObject *result = PyObject_Vectorcall(call->function, values, call->positional, call->keywords);
        status = result == NULL || python_results(program, space, call, result, &position) < 0 ? -1 : 0;
        Py_XDECREF(result);
    }
    for (int i = 0; i < made; i++) Py_XDECREF(values[i]);
    free(values);
    return status;
}

/* ---- entry --------------------------------------------------------------------------------- */

/* The machine that a call runs on: that of its first tensor which is on none of the CPUs. */
static const FbMachine *machine_of(const Program *program, const Arg *args, int count) {
    for (int i = 0; i < count; i++) {
        const FbMachine *machine = &fb_cpu;
        if (args[i].kind == ARG_VIEW) machine = program->devices[program->slots[program->views[args[i].view].slot].device].machine;
        if (args[i].kind == ARG_LIST) machine = machine_of(program, args[i].items, args[i].count);
        if (machine != &fb_cpu) return machine;
    }
    return &fb_cpu;
}

void fb_call_route(const Program *program, Call *call) {
    size_t name = strlen(call->name);
    const FbMachine *machine = machine_of(program, call->args, call->count);
    void *library = fb_machine_library(machine);
    char symbol[128];
    call->route = ROUTE_PYTHON;
    for (size_t i = 0; i < sizeof direct / sizeof *direct; i++) {
        const char *op = direct[i].op;
        if (strncmp(op, call->name, name) != 0 || (op[name] != 0 && op[name] != '.')) continue;
        if (strcmp(op[name] == '.' ? op + name + 1 : "", call->overload) != 0) continue;
        snprintf(symbol, sizeof symbol, "%s%s", machine->prefix, direct[i].symbol);
        call->symbol = library == NULL ? NULL : dlsym(library, symbol);
        call->letters = direct[i].letters;
        if (call->symbol != NULL) {
            call->route = ROUTE_DIRECT;
            return;
        }
    }
    if (!call->plain || fb_host.call_dispatcher == NULL || fb_host.new_list == NULL || fb_host.list_push == NULL) return;
    if (call->count > MAX_STACK || call->out_count > MAX_STACK) return;
    for (int i = 0; i < call->count; i++) {
        const Type *type = &call->types[i];
        const int none = call->args[i].kind == ARG_NONE && !type->maybe; /* such as an undefined tensor, which has no handle */
        if (strchr("Tidbylms", type->base) == NULL || type->item_maybe || none || (type->base == 's' && fb_host.new_string == NULL)) return;
    }
    call->route = ROUTE_DISPATCH;
}

/* Returns 0, or -1: then a Python exception is set and the GIL is held. */
int fb_call(const Program *program, Space *space, Call *call) {
    int status = 1;
    if (call->route == ROUTE_DIRECT) status = call_direct(program, space, call);
    if (call->route == ROUTE_DISPATCH) status = call_dispatcher(program, space, call);
    if (status == 0) return 0;
    int released = space->thread != NULL;
    fb_gil_take(space);
    if (status < 0) return fb_torch_error("a result could not be kept"), -1;
    if (call_python(program, space, call) < 0) return -1;
    call->route = ROUTE_PYTHON;
    if (released) fb_gil_release(space);
    return 0;
}

int fb_libcall_init(void) {
    static const FbFunction table[] = {
        {"aoti_torch_empty_strided", offsetof(FbHost, empty_strided), 1},
        {"aoti_torch_create_tensor_from_blob", offsetof(FbHost, from_blob), 1},
        {"aoti_torch__reinterpret_tensor", offsetof(FbHost, reinterpret), 1},
        {"aoti_torch_view_dtype", offsetof(FbHost, view_dtype), 1},
        {"aoti_torch_new_tensor_handle", offsetof(FbHost, new_handle), 1},
        {"aoti_torch_copy_", offsetof(FbHost, copy), 1},
        {"aoti_torch_grad_mode_set_enabled", offsetof(FbHost, set_grad_mode), 1},
        {"_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", offsetof(FbHost, autocast_enabled), 0},
        {"_ZN2at8autocast20set_autocast_enabledEN3c1010DeviceTypeEb", offsetof(FbHost, set_autocast), 0},
        {"aoti_torch_call_dispatcher", offsetof(FbHost, call_dispatcher), 0},
        {"torch_new_list_reserve_size", offsetof(FbHost, new_list), 0},
        {"torch_list_push_back", offsetof(FbHost, list_push), 0},
        {"torch_new_string_handle", offsetof(FbHost, new_string), 0},
        {"torch_new_stable_ivalue", offsetof(FbHost, new_cell), 0},
        {"torch_exception_get_what_without_backtrace", offsetof(FbHost, error_text), 0},
        {"_ZN2at12hasCallbacksEv", offsetof(FbHost, has_callbacks), 0},
        {"aoti_record_function_start", offsetof(FbHost, range_start), 0},
        {"aoti_record_function_end", offsetof(FbHost, range_end), 0},
    };
    if (fb_find_functions(table, sizeof table / sizeof *table, &fb_host) < 0) return -1;
    if (fb_host.set_autocast == NULL) fb_host.autocast_enabled = NULL;
    if (fb_host.range_start == NULL || fb_host.range_end == NULL) fb_host.has_callbacks = NULL;
    void *library = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY);
    void *wrap = library == NULL ? NULL : dlsym(library, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
    memcpy(&fb_host.wrap, &wrap, sizeof wrap);
    return 0;
}
