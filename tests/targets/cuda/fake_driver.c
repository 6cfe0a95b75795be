/* A CUDA driver whose device is this process's memory: kernels are the functions below, launches run them at once.
   While a stream captures, launches and copies become nodes of a graph, which can be run again with other arguments. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    const int32_t *attributes;
    unsigned attribute_count;
} Config;

/* function: NULL for a copy of `bytes`. */
typedef struct {
    void *function;
    unsigned programs;
    void *args[8];
    uint64_t bytes;
} Node;

typedef struct {
    Node nodes[64];
    size_t count;
} Graph;

static char said[4096];
static void *current = (void *)1;
static Graph *capturing;
static Node *last;
static int fails;
static float took;
static char contexts[256];

const char *fake_log(void) { return said; }
void fake_clear(void) { said[0] = contexts[0] = 0; }
/* A digit a launch or copy: the context that was current. */
const char *fake_contexts(void) { return contexts; }
void fake_fail(int status) { fails = status; }
void fake_took(float ms) { took = ms; }
static void say(const char *text) { strncat(said, text, sizeof said - strlen(said) - 1); }

static void add(void **args, unsigned program) {
    float *a = args[0], *b = args[1];
    int64_t n = (int64_t)args[2];
    for (int64_t i = 4 * program; i < n && i < 4 * program + 4; i++) b[i] = a[i] + 1;
}

static void twice(void **args, unsigned program) {
    float *a = args[0];
    for (int i = 0; i < 4; i++) a[4 * program + i] *= 2;
}

/* What a kernel that draws is given: the state, here or where a graph finds it, elements together, and threads. */
static void state(void **args, unsigned program) {
    int64_t seed = (int64_t)args[0], offset = (int64_t)args[1], within = (int64_t)args[2];
    float *out = args[5];
    if (within >= 0) seed = *(int64_t *)args[0], offset = *(int64_t *)args[1] + within;
    out[0] = (float)seed, out[1] = (float)offset, out[2] = (float)(int64_t)args[3], out[3] = (float)(int64_t)args[4];
}

static const struct {
    const char *name;
    void (*run)(void **, unsigned);
    int args;
} kernels[] = {{"add", add, 3}, {"twice", twice, 1}, {"state", state, 6}};

int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int index) { return *device = index, index > 1 ? 101 : 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)(intptr_t)(device + 1), 0; }
int cuCtxGetCurrent(void **context) { return *context = current, 0; }
int cuCtxPushCurrent_v2(void *context) { return current = context, 0; }
int cuCtxPopCurrent_v2(void **context) { return *context = current, current = (void *)1, 0; }
int cuModuleLoadData(void **module, const char *image) { return *module = (void *)image, strcmp(image, "cubin") ? 200 : 0; }
int cuModuleUnload(void *module) { return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(kernels[i].name, name) == 0) return *function = (void *)&kernels[i], 0;
    }
    return 500;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    char text[64];
    snprintf(text, sizeof text, "attribute %d %d\n", attribute, value);
    return say(text), 0;
}
int cuGetErrorString(int status, const char **text) { return *text = status == 2 ? "out of memory" : "no such thing", 0; }

static void run(const Node *node) {
    const int which = node->function == NULL ? -1 : (int)(((char *)node->function - (char *)kernels) / sizeof *kernels);
    if (which < 0) memcpy(node->args[0], node->args[1], node->bytes);
    for (unsigned i = 0; which >= 0 && i < node->programs; i++) kernels[which].run((void **)node->args, i);
}

static int put(Node node) {
    if (fails) return fails;
    if (strlen(contexts) < sizeof contexts - 1) strncat(contexts, (char[]){'0' + (char)(intptr_t)current, 0}, 1);
    if (capturing == NULL) return run(&node), 0;
    last = &capturing->nodes[capturing->count++];
    return *last = node, 0;
}

static Node launched(void *function, unsigned programs, void **args) {
    Node node = {function, programs, {0}, 0};
    const int count = ((__typeof__(&kernels[0]))function)->args;
    for (int i = 0; i < count; i++) memcpy(&node.args[i], args[i], 8);
    return node;
}

int cuLaunchKernelEx(const Config *config, void *function, void **args, void **extra) {
    char text[96];
    snprintf(text, sizeof text, "launch %s %u x %u shared %u dependent %u\n", ((__typeof__(&kernels[0]))function)->name, config->grid[0],
             config->block[0], config->shared, config->attribute_count);
    say(text);
    return put(launched(function, config->grid[0], args));
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    say("copy\n");
    return put((Node){NULL, 0, {(void *)to, (void *)from}, bytes});
}

/* ---- graphs */

void fake_begin(void) { capturing = calloc(1, sizeof *capturing), last = NULL; }
void *fake_end(void) {
    Graph *graph = capturing;
    capturing = NULL;
    return graph;
}
int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph, void *const **nodes, const void **edges, size_t *count) {
    static void *node;
    node = last;
    *status = capturing != NULL;
    return *nodes = &node, *count = node != NULL, 0;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) { return *exec = graph, 0; }
int cuGraphLaunch(void *exec, void *stream) {
    Graph *graph = exec;
    say("graph\n");
    for (size_t i = 0; i < graph->count; i++) run(&graph->nodes[i]);
    return fails;
}
int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const void *params) {
    const struct {
        void *function;
        unsigned grid[3], block[3], shared;
        void **args;
    } *p = params;
    say("set kernel\n");
    return *(Node *)node = launched(p->function, p->grid[0], p->args), 0;
}
int cuGraphExecMemcpyNodeSetParams(void *exec, void *node, const void *params, void *context) {
    const uint64_t *words = params;
    say("set copy\n");
    ((Node *)node)->args[1] = (void *)words[6], ((Node *)node)->args[0] = (void *)words[17], ((Node *)node)->bytes = words[22];
    return 0;
}
int cuGraphMemcpyNodeGetParams(void *node, uint64_t *words) {
    words[6] = (uint64_t)((Node *)node)->args[1], words[17] = (uint64_t)((Node *)node)->args[0], words[22] = ((Node *)node)->bytes;
    return 0;
}
/* What a library would do to a tensor of four numbers. */
int fake_library(float *to, float *from) {
    float *args[] = {from, to};
    int64_t four = 4;
    void *places[] = {&args[0], &args[1], &four};
    return put(launched((void *)&kernels[0], 1, places));
}
int cuStreamBeginCapture_v2(void *stream, int mode) { return fails; }
int cuStreamEndCapture(void *stream, void **graph) { return *graph = (void *)7, fails; }
int cuGraphDestroy(void *graph) { return say("forget\n"), 0; }
int cuStreamCreate(void **stream, unsigned flags) { return *stream = calloc(1, 8), 0; }
int cuGraphExecDestroy(void *exec) { return say("destroy\n"), 0; }
int cuEventCreate(void **event, unsigned flags) { return *event = calloc(1, 8), 0; }
/* In place of torch's own. */
int aoti_torch_get_current_cuda_stream(int32_t index, void **stream) {
    *stream = NULL;
    return 0;
}

int cuEventRecord(void *event, void *stream) { return 0; }
int cuEventQuery(void *event) { return 0; }
int cuEventElapsedTime(float *ms, void *from, void *to) { return *ms = took, 0; }
int cuEventDestroy_v2(void *event) { return free(event), 0; }

/* In place of torch's generator: what draws within a capture are told is where replays find the state. */
static int64_t generator[2] = {7, 0}, replayed[2], in_graph;
typedef struct {
    uint64_t seed, offset, within, captured;
} State;
State _ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm(void *of, uint64_t more) {
    int64_t *offset = capturing == NULL ? &generator[1] : &in_graph;
    const int64_t before = *offset;
    *offset += (int64_t)more;
    if (capturing == NULL) return (State){7, (uint64_t)before, 0, 0};
    return (State){(uint64_t)&replayed[0], (uint64_t)&replayed[1], (uint64_t)before, 1};
}
int64_t fake_offset(int64_t offset) { return in_graph = 0, generator[1] = offset; }
/* What torch does before it replays a graph. */
void fake_replay(void *graph) {
    memcpy(replayed, generator, sizeof replayed);
    generator[1] += in_graph;
    cuGraphLaunch(graph, NULL);
}
